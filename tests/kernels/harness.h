// The test harness: registration, seeded data, guarded buffers and the error rule.  Needs nothing
// but a C++17 compiler, so the same tests build for foreign CPUs and run under an emulator.
//
// Error rule   results are judged against a double reference.  A kernel may lose one rounding to
//              the storage type plus twice what a plain fp32 program loses (see Compare).
// Guards       a Buffer is NaN except where a test put a value; afterwards each element that is
//              not part of the logical matrix must still hold the same bits.
// Targets      for_each_target visits every runnable instruction set, or the one that
//              CPU_BACKEND_ISA names.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "dispatch/select.h"
#include "isa/half.h"

namespace cpu_backend::test {

// A test is "area/test_thing_property"; the command line selects by substring.
struct Registration {
  Registration(const char* name, void (*run)());
};

// Counts a check; when it fails, prints the test, the target and the formatted words.
bool expect(bool ok, const char* format, ...) __attribute__((format(printf, 2, 3)));

void for_each_target(const std::function<void(const KernelTable&)>& run);
// And those whose units are emulated, unless CPU_BACKEND_ISA names another target than scalar.
void for_each_target_and_emulated(const std::function<void(const KernelTable&)>& run);
// The emulation of the bf16 unit that a target has, or null.
const KernelTable* bf16_definition_of(const KernelTable& table);
// In hardware or emulated.
bool has_bf16_unit(const KernelTable& table);
// Codes of an int8 cache that are multiplied by integers at a time.
int integers_of_word(const KernelTable& table);

#if defined(CPU_BACKEND_TESTS_EMULATED)
constexpr bool kEmulated = true;
#else
constexpr bool kEmulated = false;
#endif
// Repetitions, a tenth of them where every instruction is emulated.
constexpr int64_t reps(int64_t native) { return kEmulated ? (native + 9) / 10 : native; }

// Where element (row, column) of a panel lies, in elements, as kernels/tiles/panel.h documents it,
// written out again.
enum class Words { kSingle, kPairs, kIntegers };
inline int64_t documented_offset(const KernelTable& table, Words words, int64_t row, int64_t column,
                                 int64_t stride) {
  if (words == Words::kSingle) return row * stride + column;
  if (words == Words::kIntegers || has_bf16_unit(table) || table.panel_width > 16) {
    const int64_t together = words == Words::kIntegers ? integers_of_word(table) : 2;
    return row / together * together * stride + together * column + row % together;
  }
  const int64_t lanes = table.panel_width / 2;
  const int64_t lane = column % lanes;
  return row * stride + column / (2 * lanes) * 2 * lanes + 2 * lane + column / lanes % 2;
}
inline Words words_of(DType type) {
  return type == DType::kBFloat16 ? Words::kPairs : Words::kSingle;
}

// Lengths around one and several vectors of every target (4, 8 or 16 lanes), and a long one.
inline std::vector<int64_t> odd_sizes() {
  return {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 257};
}

// SplitMix64 (Steele et al. 2014): the same values on every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  double uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(bits() >> 11) * 0x1p-53;
  }

 private:
  uint64_t state_;
};

constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
inline const char* name_of(DType type) {
  return type == DType::kFloat32 ? "fp32" : type == DType::kBFloat16 ? "bf16" : "fp16";
}
// Largest relative error of one rounding: 24, 8 and 11 significant bits.
inline double unit_of(DType type) {
  return type == DType::kFloat32 ? 0x1p-24 : type == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
}

#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kGuard = 0;  // the sanitizer guards the ends, also against reads
#else
constexpr int64_t kGuard = 33;  // odd, so that no row is aligned to a vector
#endif

// rows x columns elements of one storage type, `stride` elements apart.
class Buffer {
 public:
  Buffer(DType type, int64_t rows, int64_t columns, int64_t stride = 0)
      : type_(type), rows_(rows), columns_(columns), stride_(stride ? stride : columns) {
    const int64_t used = rows > 0 ? (rows - 1) * stride_ + columns : 0;
    total_ = used + 2 * kGuard;
    bytes_.resize(static_cast<size_t>(total_ * bytes_of(type)));
    for (int64_t i = 0; i < total_; ++i) put(i, nan_bits());
  }

  DType type() const { return type_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t stride() const { return stride_; }
  void* data() { return bytes_.data() + kGuard * bytes_of(type_); }
  const void* data() const { return bytes_.data() + kGuard * bytes_of(type_); }

  uint32_t bits(int64_t r, int64_t c) const { return take(kGuard + r * stride_ + c); }
  void set_bits(int64_t r, int64_t c, uint32_t value) { put(kGuard + r * stride_ + c, value); }
  float get(int64_t r, int64_t c) const {
    const uint32_t u = bits(r, c);
    if (type_ == DType::kFloat32) return bits_float(u);
    return type_ == DType::kBFloat16 ? to_float(static_cast<bf16_t>(u))
                                     : to_float(static_cast<fp16_t>(u));
  }
  void set(int64_t r, int64_t c, double value) {
    const float x = static_cast<float>(value);
    set_bits(r, c,
             type_ == DType::kFloat32    ? float_bits(x)
             : type_ == DType::kBFloat16 ? static_cast<uint32_t>(round_to_bf16(x))
                                         : static_cast<uint32_t>(round_to_fp16(x)));
  }
  void fill(Random& random, double low, double high) {
    for (int64_t r = 0; r < rows_; ++r)
      for (int64_t c = 0; c < columns_; ++c) set(r, c, random.uniform(low, high));
  }
  bool untouched(int64_t r, int64_t c) const { return bits(r, c) == nan_bits(); }
  bool operator==(const Buffer& other) const { return bytes_ == other.bytes_; }

  // Everything outside the logical matrix still holds the guard pattern.
  void check_guards(const std::string& label) const {
    for (int64_t i = 0; i < total_; ++i) {
      const int64_t at = i - kGuard;
      const bool inside = at >= 0 && i < total_ - kGuard && at % stride_ < columns_;
      if (!inside &&
          !expect(take(i) == nan_bits(), "%s: wrote outside, element %lld of stride %lld",
                  label.c_str(), static_cast<long long>(at), static_cast<long long>(stride_)))
        return;
    }
  }

 private:
  // A quiet NaN with a payload that no arithmetic produces.
  uint32_t nan_bits() const {
    return type_ == DType::kFloat32 ? 0x7fc5a5a5u : type_ == DType::kBFloat16 ? 0x7fd5u : 0x7ed5u;
  }
  uint32_t take(int64_t i) const {
    if (type_ == DType::kFloat32) {
      uint32_t u;
      memcpy(&u, &bytes_[static_cast<size_t>(i * 4)], 4);
      return u;
    }
    uint16_t u;
    memcpy(&u, &bytes_[static_cast<size_t>(i * 2)], 2);
    return u;
  }
  void put(int64_t i, uint32_t value) {
    const uint16_t low = static_cast<uint16_t>(value);
    if (type_ == DType::kFloat32) memcpy(&bytes_[static_cast<size_t>(i * 4)], &value, 4);
    if (type_ != DType::kFloat32) memcpy(&bytes_[static_cast<size_t>(i * 2)], &low, 2);
  }

  DType type_;
  int64_t rows_, columns_, stride_, total_ = 0;
  std::vector<unsigned char> bytes_;
};

// Collects (result, double reference, plain fp32 result) and judges all of them in check():
//   |result - reference| <= unit(type) * |reference| + 2 * max |plain - reference| + 2 fp32 units.
class Compare {
 public:
  Compare(DType type, std::string label) : type_(type), label_(std::move(label)) {}
  // `typical`: what plain fp32 loses on average, where a lucky plain result would prove too much.
  void add(float result, double reference, double plain, double typical = 0.0);
  // With a bound of one's own for the fp32 part of the error instead of the plain program's.
  void add_bounded(float result, double reference, double bound);
  void check() const;

 private:
  struct Entry {
    double result, reference, bound;
  };
  DType type_;
  std::string label_;
  double plain_error_ = 0.0;
  std::vector<Entry> entries_;
};

std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));

}  // namespace cpu_backend::test
