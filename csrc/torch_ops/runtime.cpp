// Binding threads and memory, and what the library says about itself.
#include <omp.h>

#include <atomic>
#include <sstream>

#include "dispatch/describe.h"
#include "dispatch/select.h"
#include "system/system.h"
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"

namespace cpu_backend {

bool bind_threads(at::IntArrayRef cpus) {
  TORCH_CHECK_VALUE(!cpus.empty(), "bind_threads needs at least one CPU.");
  set_num_threads(static_cast<int64_t>(cpus.size()));
  std::atomic<bool> ok{true};
#pragma omp parallel num_threads(static_cast<int>(cpus.size()))
  {
    if (!system::bind_thread(cpus[omp_get_thread_num()])) ok = false;
  }
  return ok;
}

void set_num_threads(int64_t threads) {
  TORCH_CHECK_VALUE(threads >= 1, "the number of threads must be positive, not ", threads, ".");
  at::set_num_threads(static_cast<int>(threads));
}

// "bind", "preferred" or the reason why neither is possible here.
std::string bind_memory(at::IntArrayRef nodes) {
  for (const int64_t node : nodes)
    TORCH_CHECK_VALUE(node >= 0 && node < system::kMaxNodes, "memory node ", node,
                      " does not exist.");
  return system::bind_memory(nodes.vec());
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
