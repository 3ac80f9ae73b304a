// The runner: kernel_tests [filter] runs the tests whose name contains `filter`.
#include "harness.h"

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <cstdlib>
#include <set>
#include <string_view>

#include "probe.h"

namespace cpu_backend {
// Weak: CMakeLists.txt says which there are.
extern const KernelTable* const k_emulated_bf16_pairs_table __attribute__((weak));
extern const KernelTable* const k_emulated_blocks_table __attribute__((weak));
extern const KernelTable* const k_emulated_tiles_table __attribute__((weak));
}  // namespace cpu_backend

namespace cpu_backend::test {
namespace {

struct Test {
  const char* name;
  void (*run)();
};

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

const char* current_test = "";
const char* current_target = "";
std::set<std::string> visited;  // targets, for tests/targets.py
std::atomic<long> checks{0};    // tests may check from several threads
std::atomic<long> failures{0};
constexpr long kMaxPrinted = 20;  // per run; one broken kernel fails thousands of checks

std::string vformat(const char* text, va_list args) {
  char buffer[1024];
  vsnprintf(buffer, sizeof buffer, text, args);
  return buffer;
}

bool is_emulated(const KernelTable& table) { return strncmp(table.target, "emulated", 8) == 0; }

}  // namespace

Registration::Registration(const char* name, void (*run)()) { tests().push_back({name, run}); }

std::string format(const char* text, ...) {
  va_list args;
  va_start(args, text);
  std::string result = vformat(text, args);
  va_end(args);
  return result;
}

bool expect(bool ok, const char* text, ...) {
  ++checks;
  if (ok) return true;
  if (++failures <= kMaxPrinted) {
    va_list args;
    va_start(args, text);
    printf("FAILED %s%s%s: %s\n", current_test, *current_target ? " on " : "", current_target,
           vformat(text, args).c_str());
    va_end(args);
  }
  return false;
}

void for_each_target(const std::function<void(const KernelTable&)>& run) {
  const char* only = getenv("CPU_BACKEND_ISA");
  for (const Target& target : targets()) {
    if (!target.runnable || (only && *only && strcmp(only, target.name) != 0)) continue;
    current_target = target.name;
    visited.insert(target.name);
    run(*target.table);
  }
  current_target = "";
}

void for_each_target_and_emulated(const std::function<void(const KernelTable&)>& run) {
  for_each_target(run);
  const char* only = getenv("CPU_BACKEND_ISA");
  if (only && *only && strcmp(only, "scalar") != 0) return;
  for (const KernelTable* const* table :
       {&k_emulated_bf16_pairs_table, &k_emulated_blocks_table, &k_emulated_tiles_table}) {
    if (!table) continue;
    current_target = (*table)->target;
    run(**table);
  }
  current_target = "";
}

// Ends the tests where a unit has no definition to compare it with.
static const KernelTable* there(const KernelTable* const* table) {
  if (!table) {
    fprintf(stderr, "tests/kernels/CMakeLists.txt leaves out the definition of a bf16 unit\n");
    abort();
  }
  return *table;
}

const KernelTable* bf16_definition_of(const KernelTable& table) {
  if (is_emulated(table)) return nullptr;
  switch (probe_of(table.target).bf16_unit) {
    case Bf16Unit::kPairs:
      return there(&k_emulated_bf16_pairs_table);
    case Bf16Unit::kBlocks:
      return there(&k_emulated_blocks_table);
    case Bf16Unit::kTiles:
      return there(&k_emulated_tiles_table);
    case Bf16Unit::kNone:
      break;
  }
  return nullptr;
}

bool has_bf16_unit(const KernelTable& table) {
  return is_emulated(table) || probe_of(table.target).bf16_unit != Bf16Unit::kNone;
}

int integers_of_word(const KernelTable& table) {
  const std::string_view name = table.target;
  if (name == "neon_i8mm_bf16" || name == "emulated_blocks") return 8;
  return name == "neon_dotprod" || name == "amx" || name == "emulated_tiles" ? 4 : 2;
}

void Compare::add(float result, double reference, double plain, double typical) {
  const double error = std::max(std::fabs(plain - reference), typical);
  if (error > plain_error_) plain_error_ = error;
  entries_.push_back({result, reference, -1.0});
}

void Compare::add_bounded(float result, double reference, double bound) {
  entries_.push_back({result, reference, bound});
}

void Compare::check() const {
  const double smallest = type_ == DType::kFloat16 ? 0x1p-25 : 0x1p-126;  // flushed subnormals
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& e = entries_[i];
    const double size = std::fabs(e.reference);
    const double fp32 = e.bound >= 0.0 ? e.bound : 2.0 * plain_error_ + 0x1p-23 * size;
    const double bound = (size + fp32) * unit_of(type_) + fp32 + smallest;
    const double error = std::fabs(e.result - e.reference);
    if (expect(error <= bound, "%s: entry %zu is %.9g, expected %.9g: error %.3g, allowed %.3g",
               label_.c_str(), i, e.result, e.reference, error, bound))
      continue;
    const size_t from = i >= 3 ? i - 3 : 0;
    for (size_t j = from; j < i + 4 && j < entries_.size() && failures <= kMaxPrinted; ++j)
      printf("    [%zu] %.9g expected %.9g\n", j, entries_[j].result, entries_[j].reference);
    return;  // the neighbours tell more than the next hundred failures
  }
}

int run_all(const char* filter) {
  const char* wanted = getenv("CPU_BACKEND_ISA");
  std::string error;
  if (!select_table(wanted, &error)) {
    printf("%s\n", error.c_str());
    return 2;
  }
  int ran = 0;
  for (const Test& test : tests()) {
    if (!strstr(test.name, filter)) continue;
    ++ran;
    current_test = test.name;
    const long checks_before = checks;
    const long failures_before = failures;
    const auto start = std::chrono::steady_clock::now();
    test.run();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    // A test that checked nothing has not passed.
    if (checks == checks_before) expect(false, "the test made no check");
    printf("%s %-60s %9ld checks %7.2f s\n", failures > failures_before ? "FAIL" : "ok  ",
           test.name, checks.load() - checks_before, seconds.count());
    fflush(stdout);
  }
  for (const std::string& target : visited) printf("ran on target %s\n", target.c_str());
  if (ran == 0) printf("no test contains \"%s\"\n", filter);
  if (failures) printf("%ld of %ld checks failed\n", failures.load(), checks.load());
  return ran == 0 ? 2 : failures ? 1 : 0;
}

}  // namespace cpu_backend::test

int main(int argc, char** argv) { return cpu_backend::test::run_all(argc > 1 ? argv[1] : ""); }
