// Choosing a target: the environment's word is obeyed or refused, never ignored.
#include <cstdlib>

#include "harness.h"
#include "probe.h"

namespace cpu_backend::test {

#define TARGET(name, ...) extern const Probe* const k_##name##_probe;
#include "dispatch/targets.def"

const Probe& probe_of(const char* target) {
#define TARGET(name, ...) \
  if (strcmp(target, #name) == 0) return *k_##name##_probe;
#include "dispatch/targets.def"
  expect(false, "target %s has no probe", target);
  return *k_scalar_probe;
}

namespace {

void test_select_takes_the_named_target() {
  std::string error;
  const char* best = nullptr;
  for (const Target& target : targets()) {
    error.clear();
    const KernelTable* table = select_table(target.name, &error);
    if (target.runnable) {
      if (!best) best = target.name;
      expect(table == target.table && error.empty(), "%s was not taken", target.name);
      expect(strcmp(table->target, target.name) == 0, "%s calls itself %s", target.name,
             table->target);
    } else {
      expect(!table && !error.empty(), "%s cannot run here, but was taken", target.name);
    }
  }
  for (const char* unset : {static_cast<const char*>(nullptr), ""}) {
    const KernelTable* table = select_table(unset, &error);
    expect(table && strcmp(table->target, best) == 0, "without a wish, %s should be taken", best);
  }
  // Where the test's caller knows the CPU.
  if (const char* expected = getenv("CPU_BACKEND_EXPECTED_ISA"))
    expect(strcmp(best, expected) == 0, "%s is taken, expected %s", best, expected);
}
const Registration a("dispatch/test_select_takes_the_named_target",
                     test_select_takes_the_named_target);

void test_select_refuses_with_a_sentence() {
  std::string error;
  expect(!select_table("pentium", &error), "an unknown name was taken");
  expect(error.find("pentium") != std::string::npos && error.find("scalar") != std::string::npos,
         "the refusal names neither the wish nor the choice: %s", error.c_str());
}
const Registration b("dispatch/test_select_refuses_with_a_sentence",
                     test_select_refuses_with_a_sentence);

}  // namespace
}  // namespace cpu_backend::test
