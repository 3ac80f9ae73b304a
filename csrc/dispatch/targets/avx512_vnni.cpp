// x86 with AVX-512 and its 8- and 16-bit dot products: Cascade Lake (2019), Zen 4 (2022) and later.
#include "isa/target.h"
#define CPU_BACKEND_TARGET_NAME "avx512_vnni"
#define CPU_BACKEND_TABLE_SYMBOL k_avx512_vnni_table
#include "dispatch/fill_table.inl"
