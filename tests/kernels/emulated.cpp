// All kernels for the CPU at hand, but with the bf16 units of others by their definition
// (isa/bf16_pairs.h, isa/bf16_tiles.h): -DCPU_BACKEND_EMULATE_BF16_PAIRS, ..._TILES.
#include "isa/target.h"
#define CPU_BACKEND_TARGET_NAME CPU_BACKEND_EMULATED_NAME
#define CPU_BACKEND_TABLE_SYMBOL CPU_BACKEND_EMULATED_SYMBOL
#include "dispatch/fill_table.inl"
