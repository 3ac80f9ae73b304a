// x86 with AVX-512 F/BW/DQ/VL: Skylake-SP (2017), Zen 4 (2022) and later.
#include "isa/target.h"
#define CPU_BACKEND_TARGET_NAME "avx512"
#define CPU_BACKEND_TABLE_SYMBOL k_avx512_table
#include "dispatch/fill_table.inl"
