#include "dispatch/describe.h"

#include <cstring>

#include "dispatch/select.h"

namespace cpu_backend {
namespace {

const char* in_words(const char* target) {
#define TARGET(name, base, flags, features, cpu, areas, what) \
  if (strcmp(target, #name) == 0) return #name ": " what;
#include "dispatch/targets.def"
  return "";
}

}  // namespace

const char* next_target() {
  const char* next = "";
  for (const Target& target : targets()) {
    if (target.runnable) break;
    next = in_words(target.name);
  }
  return next;
}

}  // namespace cpu_backend
