// Quantization of a weight while it is loaded: codes of 8 or 4 bits, by groups of channels.
//
// 8 bits    scale = fp16(max|x| / 127), code = round(x / scale) + 128
// 4 bits    ZeroKind::kLevels: the same scale, then for every 32 channels a whole step and base.
//           Steps from what reaches their ends down to three quarters of it are tried, because
//           clipping the ends makes the others finer; each takes the base that fits its codes best
//           (least squares), and the step with the least sum of squared errors wins, the largest of
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

// The scale of a group whose largest magnitude is 127 steps of it, and what to divide by.
CPU_BACKEND_INLINE float scale_of(const WeightGroup& group) {
  return as_fp16(group.largest([](Vec x) CPU_BACKEND_LAMBDA { return abs(x); }) / 127.0f);
}
CPU_BACKEND_INLINE float divisor_of(float scale) { return scale > 0.0f ? scale : 1.0f; }

CPU_BACKEND_INLINE Vec held(Vec x, float low, float high) {
  return max(min(x, broadcast(high)), broadcast(low));
}

static inline void code_group8(const WeightGroup& group, float scale, float* codes) {
  for_each_vector(group.size, [&](int64_t i, int) CPU_BACKEND_LAMBDA {
    const Vec code = from_int(round_to_int(load(group.values + i) / divisor_of(scale)));
    store(codes + i, held(code, -127.0f, 127.0f) + 128.0f);
  });
}

// A piece with levels: codes as numbers, what they mean and what they lose, in units of the scale.
struct CodedPiece {
  float codes[WeightGroup::kMost];
  float step, base, error;
};

// The codes for one step, around a base that is fitted once.
static inline void code_step(const WeightGroup& piece, float middle, float mean,
                             CodedPiece& coded) {
  const float step = coded.step;
  const auto whole = [step](float base) {
    const float most = 255.0f - 15.0f * step;
    base = __builtin_rintf(base);
    return base > 0.0f ? base < most ? base : most : 0.0f;
  };
  const auto code = [&](Vec x) CPU_BACKEND_LAMBDA {
    return held(from_int(round_to_int((x + (128.0f - coded.base)) / step)), 0.0f, 15.0f);
  };
  coded.base = whole(middle + 128.0f - 7.5f * step);
  const float mean_code = piece.sum([&](Vec x, int64_t) CPU_BACKEND_LAMBDA { return code(x); }) /
                          static_cast<float>(piece.size);
  coded.base = whole(mean + 128.0f - step * mean_code);
  coded.error = piece.sum([&](Vec x, int64_t i) CPU_BACKEND_LAMBDA {
    const Vec now = code(x);
    store(coded.codes + i, now);
    const Vec d = now * step + (coded.base - 128.0f) - x;
    return d * d;
  });
}

static inline void code_piece4(const WeightGroup& piece, CodedPiece& best) {
  constexpr float kLeast = 0.75f;
  const float high = piece.largest([](Vec x) CPU_BACKEND_LAMBDA { return x; });
  const float low = -piece.largest([](Vec x) CPU_BACKEND_LAMBDA { return -x; });
  const float mean = piece.sum([](Vec x, int64_t) CPU_BACKEND_LAMBDA { return x; }) /
                     static_cast<float>(piece.size);
  const float middle = (low + high) / 2.0f;
  const float reach = (high - low) / 15.0f;
  const float most = __builtin_ceilf(reach);
  best.step = most > 1.0f ? most < 17.0f ? most : 17.0f : 1.0f;
  code_step(piece, middle, mean, best);
  CodedPiece tried;
  for (tried.step = best.step - 1.0f; tried.step >= 1.0f && tried.step >= kLeast * reach;
       tried.step -= 1.0f) {
    code_step(piece, middle, mean, tried);
    if (tried.error < best.error) best = tried;
  }
}

// The pieces of a group of row r; returns the sum of squared errors.
static inline double code_group4(const QuantWeightArgs& args, int64_t r, int64_t begin,
                                 const WeightGroup& group, float scale) {
  constexpr int64_t kPiece = QuantLayout::kLevelChannels;
  uint8_t* codes = args.codes + r * args.size + begin;
  uint16_t* levels = args.levels + r * ceil_div(args.size, kPiece) + begin / kPiece;
  double lost = 0.0;
  WeightGroup units;
  for_each_vector(group.size, [&](int64_t i, int) CPU_BACKEND_LAMBDA {
    store(units.values + i, load(group.values + i) / divisor_of(scale));
  });
  for (int64_t i = 0; i < group.size; i += kPiece, ++levels) {
    WeightGroup piece;
    CodedPiece coded;
    piece.load_from(units.values + i, group.size - i < kPiece ? group.size - i : kPiece);
    code_piece4(piece, coded);
    *levels = static_cast<uint16_t>(coded.step + 256.0f * coded.base);
    for (int64_t c = 0; c < piece.size; ++c) codes[i + c] = static_cast<uint8_t>(coded.codes[c]);
    lost += static_cast<double>(coded.error);
  }
  return lost * static_cast<double>(scale) * static_cast<double>(scale);
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
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * args.group;
      group.load_from(x + begin, args.size - begin < args.group ? args.size - begin : args.group);
      const float scale = scale_of(group);
      static_cast<fp16_t*>(args.scales)[r * groups + g] = round_to_fp16(scale);
      if (args.bits == 4) {
        lost += code_group4(args, r, begin, group, scale);
        all +=
            static_cast<double>(group.sum([](Vec v, int64_t) CPU_BACKEND_LAMBDA { return v * v; }));
        continue;
      }
      float coded[WeightGroup::kMost];
      code_group8(group, scale, coded);
      for (int64_t i = 0; i < group.size; ++i) codes[begin + i] = static_cast<uint8_t>(coded[i]);
    }
    if (args.bits == 4) {
      args.squares[2 * r] = lost;
      args.squares[2 * r + 1] = all;
    }
  }
}

}  // namespace CPU_BACKEND_NAMESPACE
