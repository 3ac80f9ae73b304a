// x86 with AVX2, FMA and F16C: Haswell (2013), Zen (2017) and later.
#include "isa/target.h"
#define CPU_BACKEND_TARGET_NAME "avx2"
#define CPU_BACKEND_TABLE_SYMBOL k_avx2_table
#include "dispatch/fill_table.inl"
