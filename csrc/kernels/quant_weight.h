// Quantization of a weight while it is loaded: codes of 8 or 4 bits, by groups of channels.
//
// 8 bits    scale = fp16(max|x| / 127), code = round(x / scale) + 128
// 4 bits    code = round((x - start) / step) for several ranges: clipping the ends makes the steps
//           finer.  Each takes the scale and offset that fit its codes best (least squares),
//           rounded to fp16; the range with the least sum of squared errors wins, the first of
//           equals.
// Ties go to even.  The last group may be short.
// Threads   none: rows given by the caller.
#pragma once

#include "core/quant.h"
#include "isa/codes.h"
#include "isa/dot.h"
#include "isa/half.h"

namespace CPU_BACKEND_NAMESPACE {

// The channels of one group in fp32; lanes past `size` are in no sum.
struct WeightGroup {
  static constexpr int64_t kMost = QuantWeightArgs::kMostGroup;
  float values[kMost];
  int64_t size;

  template <class T>
  CPU_BACKEND_INLINE void load_from(const T* x, int64_t n) {
    size = n;
    for_each_vector(n, [&](int64_t i, int lanes)
                           CPU_BACKEND_LAMBDA { store(values + i, load_n(x + i, lanes)); });
  }
  // The sum of f(vector, its place) over the group.
  template <class F>
  CPU_BACKEND_INLINE float sum(F f) const {
    Vec total{};
    for_each_vector(size, [&](int64_t i, int lanes) CPU_BACKEND_LAMBDA {
      const Vec terms = f(load(values + i), i);
      total = total + (lanes == kLanes ? terms : select(lane_index(0) < lanes, terms, Vec{}));
    });
    return sum_lanes(total);
  }
  // The largest f(vector), which is at least that of the first channel.
  template <class F>
  CPU_BACKEND_INLINE float largest(F f) const {
    Vec most = f(broadcast(values[0]));
    for_each_vector(size, [&](int64_t i, int lanes) CPU_BACKEND_LAMBDA {
      const Vec x = f(load(values + i));
      most = max(most, lanes == kLanes ? x : select(lane_index(0) < lanes, x, most));
    });
    return max_lanes(most);
  }
};

CPU_BACKEND_INLINE float as_fp16(float x) { return to_float(round_to_fp16(x)); }

// Codes as numbers, with what they mean and what they lose.
struct CodedGroup {
  float codes[WeightGroup::kMost];
  float scale, offset, error;
};

static inline void code_group8(const WeightGroup& group, CodedGroup& coded) {
  const float magnitude = group.largest([](Vec x) CPU_BACKEND_LAMBDA { return abs(x); });
  coded.scale = as_fp16(magnitude / 127.0f);
  const float step = coded.scale > 0x1p-14f ? coded.scale : 0x1p-14f;
  for_each_vector(group.size, [&](int64_t i, int) CPU_BACKEND_LAMBDA {
    const Vec code = from_int(round_to_int(load(group.values + i) / step));
    store(coded.codes + i, max(min(code, broadcast(127.0f)), broadcast(-127.0f)) + 128.0f);
  });
}

// The codes of one range, and the line that fits them.
static inline void code_range4(const WeightGroup& group, float start, float step, float mean,
                               CodedGroup& coded) {
  const float size = static_cast<float>(group.size);
  const float mean_code = group.sum([&](Vec x, int64_t i) CPU_BACKEND_LAMBDA {
    const Vec code = from_int(round_to_int((x - start) / step));
    const Vec held = max(min(code, broadcast(15.0f)), broadcast(0.0f));
    store(coded.codes + i, held);
    return held;
  }) / size;
  const float spread = group.sum([&](Vec, int64_t i) CPU_BACKEND_LAMBDA {
    const Vec d = load(coded.codes + i) - mean_code;
    return d * d;
  });
  const float shared = group.sum(
      [&](Vec x, int64_t i) CPU_BACKEND_LAMBDA { return (load(coded.codes + i) - mean_code) * x; });
  coded.scale = as_fp16(shared / (spread > 1e-12f ? spread : 1e-12f));
  coded.offset = as_fp16(mean - coded.scale * mean_code);
  coded.error = group.sum([&](Vec x, int64_t i) CPU_BACKEND_LAMBDA {
    const Vec d = load(coded.codes + i) * coded.scale + coded.offset - x;
    return d * d;
  });
}

static inline void code_group4(const WeightGroup& group, CodedGroup& best) {
  constexpr float kShares[] = {1.0f, 0.92f, 0.84f, 0.76f};  // of the group's range
  const float high = group.largest([](Vec x) CPU_BACKEND_LAMBDA { return x; });
  const float low = -group.largest([](Vec x) CPU_BACKEND_LAMBDA { return -x; });
  const float middle = (low + high) / 2.0f;
  const float mean = group.sum([](Vec x, int64_t) CPU_BACKEND_LAMBDA { return x; }) /
                     static_cast<float>(group.size);
  for (const float share : kShares) {
    const float reach = share * (high - low) / 2.0f;
    const float step = reach / 7.5f > 1e-12f ? reach / 7.5f : 1e-12f;
    CodedGroup tried;
    CodedGroup& coded = share == kShares[0] ? best : tried;
    code_range4(group, middle - reach, step, mean, coded);
    if (coded.error < best.error) best = coded;
  }
}

template <class T>
void quantize_weight(const QuantWeightArgs& args, Slice rows) {
  const int64_t groups = ceil_div(args.size, args.group);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = static_cast<const T*>(args.x) + r * args.x_stride;
    uint8_t* codes = args.codes + r * args.size;
    double lost = 0.0;
    double all = 0.0;
    WeightGroup group;
    CodedGroup coded{};
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * args.group;
      group.load_from(x + begin, args.size - begin < args.group ? args.size - begin : args.group);
      if (args.bits == 8) {
        code_group8(group, coded);
      } else {
        code_group4(group, coded);
        static_cast<fp16_t*>(args.offsets)[r * groups + g] = round_to_fp16(coded.offset);
        lost += static_cast<double>(coded.error);
        all +=
            static_cast<double>(group.sum([](Vec v, int64_t) CPU_BACKEND_LAMBDA { return v * v; }));
      }
      static_cast<fp16_t*>(args.scales)[r * groups + g] = round_to_fp16(coded.scale);
      for (int64_t i = 0; i < group.size; ++i)
        codes[begin + i] = static_cast<uint8_t>(coded.codes[i]);
    }
    if (args.bits == 4) {
      args.squares[2 * r] = lost;
      args.squares[2 * r + 1] = all;
    }
  }
}

}  // namespace CPU_BACKEND_NAMESPACE
