// Compiled once per target with that target's flags, like dispatch/target.cpp; see probe.h.
#include "probe.h"

#include "isa/bf16_pairs.h"
#include "isa/codes.h"
#include "isa/math.h"
#include "kernels/sample.h"

namespace CPU_BACKEND_NAMESPACE {

template <class F>
CPU_BACKEND_INLINE void map(const float* x, float* y, int64_t size, F f) {
  for_each_vector(
      size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA { store_n(y + i, f(load_n(x + i, n)), n); });
}
template <class F>
CPU_BACKEND_INLINE void map(const float* a, const float* b, float* y, int64_t size, F f) {
  for_each_vector(size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
    store_n(y + i, f(load_n(a + i, n), load_n(b + i, n)), n);
  });
}
template <class From, class To>
CPU_BACKEND_INLINE void convert(const void* x, void* y, int64_t size) {
  for_each_vector(size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
    store_n(static_cast<To*>(y) + i, load_n(static_cast<const From*>(x) + i, n), n);
  });
}

template <class Code>
void widen_codes(const void* x, float* y, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes)
    store(y + i, load(static_cast<const Code*>(x) + i) * kUnit<Code>);
}
template <class Code>
void narrow_codes(const float* x, void* y, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) store(static_cast<Code*>(y) + i, load(x + i));
}
template <class Code>
void widen_code_pairs(const void* x, float* first, float* second, int64_t size) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const auto pairs = load_pairs(static_cast<const Code*>(x) + 2 * i);
    store(first + i, first_of_pair(pairs) * kUnit<Code>);
    store(second + i, second_of_pair(pairs) * kUnit<Code>);
  }
}
#if defined(CPU_BACKEND_BF16_PAIRS)
template <class Code>
void widen_bf16_pairs(const void* x, float* first, float* second, int64_t size) {
  for (int64_t i = 0; i < size; i += 2 * kLanes) {
    VecU words[2];
    load_bf16_pairs(static_cast<const Code*>(x) + 2 * i, words);
    for (int w = 0; w < 2; ++w) {
      store(first + i + w * kLanes, first_of_pair(words[w]) * kUnit<Code>);
      store(second + i + w * kLanes, second_of_pair(words[w]) * kUnit<Code>);
    }
  }
}
#else
template <class Code>
constexpr void (*widen_bf16_pairs)(const void*, float*, float*, int64_t) = nullptr;
#endif

#define CPU_BACKEND_MAP(f)                                       \
  [](const float* x, float* y, int64_t n) {                      \
    map(x, y, n, [](Vec v) CPU_BACKEND_LAMBDA { return f(v); }); \
  }

namespace {
#if defined(CPU_BACKEND_TILES)
constexpr test::Bf16Unit kBf16Unit = test::Bf16Unit::kTiles;
#elif defined(CPU_BACKEND_BLOCKS)
constexpr test::Bf16Unit kBf16Unit = test::Bf16Unit::kBlocks;
#elif defined(CPU_BACKEND_BF16_PAIRS)
constexpr test::Bf16Unit kBf16Unit = test::Bf16Unit::kPairs;
#else
constexpr test::Bf16Unit kBf16Unit = test::Bf16Unit::kNone;
#endif

const test::Probe kProbe = {
    CPU_BACKEND_STRING(CPU_BACKEND_TARGET),
    kBf16Unit,
    kLanes,
    CPU_BACKEND_MAP(exp),
    CPU_BACKEND_MAP(exp_nonpositive),
    CPU_BACKEND_MAP(exp2_for_bf16),
    CPU_BACKEND_MAP(sigmoid),
    CPU_BACKEND_MAP(sigmoid_for_16_bits),
    CPU_BACKEND_MAP(normal_tail_for_16_bits),
    CPU_BACKEND_MAP(tanh),
    CPU_BACKEND_MAP(erfc),
    CPU_BACKEND_MAP(log),
    CPU_BACKEND_MAP(abs),
    [](const float* a, const float* b, float* y, int64_t n) {
      map(a, b, y, n, [](Vec u, Vec v) CPU_BACKEND_LAMBDA { return max(u, v); });
    },
    [](const float* a, const float* b, float* y, int64_t n) {
      map(a, b, y, n, [](Vec u, Vec v) CPU_BACKEND_LAMBDA { return min(u, v); });
    },
    [](const float* a, const float* b, float* y, int64_t n) {
      map(a, b, y, n,
          [](Vec u, Vec v) CPU_BACKEND_LAMBDA { return select(u < v, u, broadcast(7.0f)); });
    },
    [](const float* a, const float* b, float* y, int64_t n) {
      map(a, b, y, n, [](Vec u, Vec v) CPU_BACKEND_LAMBDA { return u * v + 1.0f; });
    },
    [](const float* x) { return sum_lanes(load(x)); },
    [](const float* x) { return max_lanes(load(x)); },
    [](int32_t first, int32_t* y) { store_raw(y, lane_index(first)); },
    [](float x, float* y) { store(y, broadcast(x)); },
    [](const void* x, float* y, int64_t n) { convert<bf16_t, float>(x, y, n); },
    [](const void* x, float* y, int64_t n) { convert<fp16_t, float>(x, y, n); },
    [](const float* x, void* y, int64_t n) { convert<float, bf16_t>(x, y, n); },
    [](const float* x, void* y, int64_t n) { convert<float, fp16_t>(x, y, n); },
    {widen_codes<fp8_t>, narrow_codes<fp8_t>, widen_code_pairs<fp8_t>, widen_bf16_pairs<fp8_t>},
    {widen_codes<e5m2_t>, narrow_codes<e5m2_t>, widen_code_pairs<e5m2_t>, widen_bf16_pairs<e5m2_t>},
    {nullptr, narrow_codes<int8_t>, nullptr, nullptr},
    [](const float* x, float* lanes, int n) { store(lanes, load_partial(x, n)); },
    [](const float* lanes, float* y, int n) { store_partial(y, load(lanes), n); },
    [](int32_t first, uint64_t seed, float* y, int64_t size) {
      for_each_vector(size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
        store_n(y + i, uniform(lane_index(first + static_cast<int32_t>(i)), seed), n);
      });
    },
};
}  // namespace

}  // namespace CPU_BACKEND_NAMESPACE

namespace cpu_backend::test {
#define CPU_BACKEND_PROBE CPU_BACKEND_JOIN(k_, CPU_BACKEND_TARGET, _probe)
extern const Probe* const CPU_BACKEND_PROBE;
const Probe* const CPU_BACKEND_PROBE = &CPU_BACKEND_TARGET::kProbe;
}  // namespace cpu_backend::test
