// IBM z14 (2017) and later: vector-enhancements facility 1, fp32 in vectors; big-endian.
#include "isa/target.h"
#define CPU_BACKEND_TARGET_NAME "vxe"
#define CPU_BACKEND_TABLE_SYMBOL k_vxe_table
#include "dispatch/fill_table.inl"
