// Which instruction set this translation unit is compiled for, and its constants.
//
// The build compiles dispatch/target.cpp once per line of dispatch/targets.def, with that target's
// own flags and -DCPU_BACKEND_TARGET=<name>.  This is the only place that looks at compiler macros
// of an instruction set; everything else sees kVectorBytes, kMaxRows and CPU_BACKEND_NAMESPACE.
#pragma once

#ifndef CPU_BACKEND_TARGET
#error "compile through dispatch/target.cpp with -DCPU_BACKEND_TARGET=<name>"
#endif

// Everything compiled per target lives in a namespace of its own, so that the linker can never
// merge an AVX-512 copy of an inline function into code that runs on an AVX2 machine.
#define CPU_BACKEND_NAMESPACE cpu_backend::CPU_BACKEND_TARGET
#define CPU_BACKEND_JOIN(a, b, c) CPU_BACKEND_JOIN_NOW(a, b, c)  // with macros replaced first
#define CPU_BACKEND_JOIN_NOW(a, b, c) a##b##c
#define CPU_BACKEND_STRING(a) CPU_BACKEND_STRING_NOW(a)
#define CPU_BACKEND_STRING_NOW(a) #a
#define CPU_BACKEND_INLINE inline __attribute__((always_inline))
#define CPU_BACKEND_LAMBDA __attribute__((always_inline))
// For inner loops that fill the register file: inlined into a larger function, its variables would
// compete with theirs and be spilled.
#define CPU_BACKEND_NOINLINE __attribute__((noinline))

#if defined(__aarch64__)
#include <arm_neon.h>
#endif
#if defined(__AVX512F__)
#include <immintrin.h>
#define CPU_BACKEND_VECTOR_BYTES 64
#elif defined(__AVX2__)
#include <immintrin.h>
#define CPU_BACKEND_VECTOR_BYTES 32
#else
// SSE2, NEON, z/Architecture vectors: all are 16 bytes and reached through compiler vectors.
#define CPU_BACKEND_VECTOR_BYTES 16
#endif

// Products of bf16 pairs in hardware: on vectors (AVX512_BF16), on vectors and, as those of bytes,
// on blocks of two rows and two columns (BF16 and I8MM of Arm), and, as those of bytes, on tiles
// (AMX).  The kernel tests compile each by its definition for any CPU (CPU_BACKEND_EMULATE_...).
#if (defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && defined(__ARM_FEATURE_MATMUL_INT8)) || \
    defined(CPU_BACKEND_EMULATE_BLOCKS)
#define CPU_BACKEND_BLOCKS
#endif
#if defined(__AVX512BF16__) || defined(CPU_BACKEND_EMULATE_BF16_PAIRS) || \
    defined(CPU_BACKEND_BLOCKS)
#define CPU_BACKEND_BF16_PAIRS
#endif
// Products of four bytes on vectors so fast that numbers of 16 bits go as two planes of bytes.
#if defined(CPU_BACKEND_BLOCKS) || defined(__ARM_FEATURE_DOTPROD)
#define CPU_BACKEND_PLANES
#endif
#if (defined(__AMX_BF16__) && defined(__AMX_INT8__)) || defined(CPU_BACKEND_EMULATE_TILES)
#define CPU_BACKEND_TILES
#endif

namespace CPU_BACKEND_NAMESPACE {

constexpr int kVectorBytes = CPU_BACKEND_VECTOR_BYTES;
constexpr int kLanes = kVectorBytes / 4;

// Rows of the GEMM register tile (two vectors wide).  6 x 2 accumulators + 2 weight vectors +
// 1 broadcast fill 15 of 16 registers; 12 x 2 fit where there are 32.
#if defined(__AVX512F__) || defined(__aarch64__) || defined(__VEC__)
constexpr int kMaxRows = 12;
#else
constexpr int kMaxRows = 6;
#endif

#if defined(CPU_BACKEND_TILES)
constexpr bool kHasTiles = true;
#else
constexpr bool kHasTiles = false;
#endif
#if defined(CPU_BACKEND_PLANES)
constexpr bool kHasPlanes = true;
#else
constexpr bool kHasPlanes = false;
#endif
#if defined(CPU_BACKEND_BLOCKS)
constexpr bool kHasBlocks = true;
#else
constexpr bool kHasBlocks = false;
#endif
// Whether signed bytes are multiplied by unsigned ones.  SDOT and UDOT want equal signs.
#if defined(CPU_BACKEND_PLANES) && !defined(CPU_BACKEND_BLOCKS)
constexpr bool kSignedBytes = false;
#else
constexpr bool kSignedBytes = true;
#endif

}  // namespace CPU_BACKEND_NAMESPACE
