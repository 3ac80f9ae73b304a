// Asks nothing of a system.
#include "system/system.h"

namespace cpu_backend::system {

bool has_feature(int /*word*/, int /*bit*/, const char* /*apple_name*/) { return false; }

void discard(void* /*memory*/, size_t /*bytes*/) {}

ByteRange stack_of_this_thread() { return {0, 0}; }

}  // namespace cpu_backend::system
