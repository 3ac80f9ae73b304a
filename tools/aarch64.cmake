# A toolchain file (CMAKE_TOOLCHAIN_FILE): the libraries for 64-bit ARM on Linux, from another CPU.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
