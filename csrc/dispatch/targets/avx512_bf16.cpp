// x86 with AVX-512 and AVX512_BF16: Cooper Lake (2020), Zen 4 (2022) and later.
#include "isa/target.h"
#define CPU_BACKEND_TARGET_NAME "avx512_bf16"
#define CPU_BACKEND_TABLE_SYMBOL k_avx512_bf16_table
#include "dispatch/fill_table.inl"
