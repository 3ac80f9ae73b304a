// The instruction set this process computes with: chosen once, from CPU, operating system, build
// and CPU_BACKEND_ISA.
#pragma once

#include <string>
#include <vector>

#include "dispatch/kernel_table.h"

namespace cpu_backend {

struct Target {
  const char* name;
  const KernelTable* table;
  bool runnable;  // this CPU and operating system can execute it
};

// Every target of this build, best first.
const std::vector<Target>& targets();

// The best runnable table, or the one that CPU_BACKEND_ISA names.  Null when the name is unknown,
// not in this build, or not runnable here; then `error` gets one sentence.
const KernelTable* select_table(const char* requested, std::string* error);

}  // namespace cpu_backend
