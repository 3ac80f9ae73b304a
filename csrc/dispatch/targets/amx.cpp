// x86 with AMX-TILE and AMX-BF16 beside AVX512_BF16: Sapphire Rapids (2023) and later.
#include "isa/target.h"
#define CPU_BACKEND_TARGET_NAME "amx"
#define CPU_BACKEND_TABLE_SYMBOL k_amx_table
#include "dispatch/fill_table.inl"
