// Binding threads and memory, and what the library says about itself.
#include <omp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "dispatch/describe.h"
#include "dispatch/select.h"
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"

namespace cpu_backend {
namespace {

// linux/mempolicy.h, spelled out so that the build needs no libnuma.
constexpr int kMpolPreferred = 1;
constexpr int kMpolBind = 2;

#if defined(__linux__)
long set_mempolicy_call(int mode, const unsigned long* mask, unsigned long bits) {
  return syscall(SYS_set_mempolicy, mode, mask, bits);
}
#endif

}  // namespace

bool bind_threads(at::IntArrayRef cpus) {
  TORCH_CHECK_VALUE(!cpus.empty(), "bind_threads needs at least one CPU.");
  set_num_threads(static_cast<int64_t>(cpus.size()));
#if defined(__linux__)
  std::atomic<bool> ok{true};
#pragma omp parallel num_threads(static_cast<int>(cpus.size()))
  {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(cpus[omp_get_thread_num()]), &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) ok = false;
  }
  return ok;
#else
  return false;
#endif
}

void set_num_threads(int64_t threads) {
  TORCH_CHECK_VALUE(threads >= 1, "the number of threads must be positive, not ", threads, ".");
  at::set_num_threads(static_cast<int>(threads));
}

// "bind", "preferred" or the reason why neither is possible here.
std::string bind_memory(at::IntArrayRef nodes) {
#if defined(__linux__)
  constexpr int kBitsPerWord = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(16, 0);
  for (const int64_t node : nodes) {
    TORCH_CHECK_VALUE(node >= 0 && node < static_cast<int64_t>(mask.size()) * kBitsPerWord,
                      "memory node ", node, " does not exist.");
    mask[node / kBitsPerWord] |= 1ul << (node % kBitsPerWord);
  }
  const unsigned long bits = mask.size() * kBitsPerWord;
  if (set_mempolicy_call(kMpolBind, mask.data(), bits) == 0) return "bind";
  if (set_mempolicy_call(kMpolPreferred, mask.data(), bits) == 0) return "preferred";
  return std::string("not possible: ") + std::strerror(errno);
#else
  return "not possible: not Linux";
#endif
}

void init_cpu_memory_env(at::IntArrayRef nodes) {
  const std::string outcome = bind_memory(nodes);
  if (outcome != "bind") {
    TORCH_WARN_ONCE("cpu_backend: memory binding is ", outcome);
  }
}

std::string describe() {
  std::ostringstream out;
  out << "target=" << kernels().target << ";runnable=";
  bool first = true;
  for (const Target& target : targets()) {
    if (!target.runnable) continue;
    out << (first ? "" : ",") << target.name;
    first = false;
  }
  out << ";built=";
  first = true;
  for (const Target& target : targets()) {
    out << (first ? "" : ",") << target.name;
    first = false;
  }
  out << ";next=" << next_target() << ";threads=" << at::get_num_threads()
      << ";torch=" << CPU_BACKEND_BUILT_TORCH << ";version=" << CPU_BACKEND_VERSION;
  return out.str();
}

}  // namespace cpu_backend
