// Where threads and memory stay where the system puts them, in pages of its choice.
#include "system/system.h"

namespace cpu_backend::system {

bool grants_tiles() { return false; }

bool bind_thread(int64_t /*cpu*/) { return false; }

std::string bind_memory(const std::vector<int64_t>& /*nodes*/) {
  return "not possible: this system has no way to do it";
}

void advise_large_pages(void* /*memory*/, size_t /*bytes*/) {}

int64_t large_page_bytes() { return 0; }

}  // namespace cpu_backend::system
