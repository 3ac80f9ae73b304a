# A toolchain file (CMAKE_TOOLCHAIN_FILE): the libraries for IBM Z on Linux, from another CPU.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR s390x)
set(CMAKE_CXX_COMPILER s390x-linux-gnu-g++)
