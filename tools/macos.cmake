# A toolchain file (CMAKE_TOOLCHAIN_FILE): Apple silicon, from another system by the package ziglang.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR arm64)
set(CMAKE_CXX_COMPILER ${CMAKE_CURRENT_LIST_DIR}/macos_cxx)
set(CMAKE_INSTALL_NAME_TOOL true)  # asked for, not used
# Nothing is linked, for which ziglang would compile its C++ library first, a minute long: not by
# CMake's own tries either.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_CXX_COMPILER_ID_RUN TRUE)
set(CMAKE_CXX_COMPILER_ID Clang)
set(CMAKE_CXX_COMPILER_VERSION 22.1)
set(CMAKE_CXX_STANDARD_COMPUTED_DEFAULT 17)
set(CMAKE_CXX_EXTENSIONS_COMPUTED_DEFAULT ON)
