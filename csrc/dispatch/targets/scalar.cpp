// any CPU: 16-byte compiler vectors with the architecture's baseline flags.
#include "isa/target.h"
#define CPU_BACKEND_TARGET_NAME "scalar"
#define CPU_BACKEND_TABLE_SYMBOL k_scalar_table
#include "dispatch/fill_table.inl"
