// 64-bit Arm: Advanced SIMD is part of its baseline.
#include "isa/target.h"
#define CPU_BACKEND_TARGET_NAME "neon"
#define CPU_BACKEND_TABLE_SYMBOL k_neon_table
#include "dispatch/fill_table.inl"
