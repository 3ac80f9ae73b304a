// x86 with the 8- and 16-bit dot products of AVX-512 in 32-byte vectors (AVX-VNNI), and often
// without AVX-512: Alder Lake (2021), Sierra Forest (2024) and later.
#include "isa/target.h"
#define CPU_BACKEND_TARGET_NAME "avx2_vnni"
#define CPU_BACKEND_TABLE_SYMBOL k_avx2_vnni_table
#include "dispatch/fill_table.inl"
