// Compiled by the tests, never run: no Mac was at hand.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/sysctl.h>

#include "system/system.h"

namespace cpu_backend::system {

bool has_feature(int /*word*/, int /*bit*/, const char* apple_name) {
  const std::string name = std::string("hw.optional.arm.") + apple_name;
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(name.c_str(), &value, &size, nullptr, 0) == 0 && value != 0;
}

void discard(void* memory, size_t bytes) { madvise(memory, bytes, MADV_FREE); }

ByteRange stack_of_this_thread() {
  const pthread_t self = pthread_self();
  const size_t bytes = pthread_get_stacksize_np(self);
  return byte_range(static_cast<char*>(pthread_get_stackaddr_np(self)) - bytes, bytes);
}

}  // namespace cpu_backend::system
