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
  // The sum of f(vector) over the group.
  template <class F>
  CPU_BACKEND_INLINE float sum(F f) const {
    Vec total{};
    for_each_vector(size, [&](int64_t i, int lanes) CPU_BACKEND_LAMBDA {
      const Vec terms = f(load(values + i));
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
CPU_BACKEND_INLINE VecI held(VecI x, int32_t low, int32_t high) {
  const VecI below = x < high ? x : broadcast(high);
  return below > low ? below : broadcast(low);
}

static inline void code_group8(const WeightGroup& group, float scale, float* codes) {
  for_each_vector(group.size, [&](int64_t i, int) CPU_BACKEND_LAMBDA {
    const Vec code = from_int(round_to_int(load(group.values + i) / divisor_of(scale)));
    store(codes + i, held(code, -127.0f, 127.0f) + 128.0f);
  });
}

// As many pieces of a row as a vector has lanes, one in each: a channel of all is a vector, and no
// sum is over lanes.
struct Pieces {
  static constexpr int64_t kSize = QuantLayout::kLevelChannels;
  static constexpr int64_t kSpan = kSize * kLanes;
  float units[kSpan];    // the weights as the row has them, divided by their scales
  float lanes[kSpan];    // [kSize][kLanes]; channels past the row's end repeat the piece's first
  float counted[kSpan];  // likewise: 1, or 0 past the end
  Vec sizes;             // channels of each piece

  // Channels [0, n) of what x points at, n <= kSpan; divisor(channel): that of its group.
  template <class T, class F>
  CPU_BACKEND_INLINE void load_from(const T* x, int64_t n, F divisor) {
    for_each_vector(n, [&](int64_t i, int some) CPU_BACKEND_LAMBDA {
      store(units + i, load_n(x + i, some) / divisor(i));
    });
    for (int64_t i = n; i < kSpan; ++i) {
      const int64_t first = i / kSize * kSize;
      units[i] = units[first < n ? first : 0];
    }
    const VecI first = lane_index(0) * static_cast<int32_t>(kSize);
    const VecI end = broadcast(static_cast<int32_t>(n));
    for (int32_t c = 0; c < kSize; ++c) {
      for (int64_t lane = 0; lane < kLanes; ++lane)
        lanes[c * kLanes + lane] = units[lane * kSize + c];
      store(counted + c * kLanes, select(first + c < end, broadcast(1.0f), Vec{}));
    }
    sizes = held(from_int(end - first), 1.0f, static_cast<float>(kSize));
  }
  CPU_BACKEND_INLINE Vec channel(int64_t c) const { return load(lanes + c * kLanes); }
  // The sums of f(vector) over the channels.
  template <class F>
  CPU_BACKEND_INLINE Vec sum(F f) const {
    constexpr int kTotals = 4;  // additions wait for the one before
    Vec totals[kTotals] = {};
    for (int64_t c = 0; c < kSize; c += kTotals) {
#pragma GCC unroll 4
      for (int64_t i = 0; i < kTotals; ++i)
        totals[i] = totals[i] + f(channel(c + i)) * load(counted + (c + i) * kLanes);
    }
    return (totals[0] + totals[1]) + (totals[2] + totals[3]);
  }
};

// What the codes of pieces mean, and the sums of squared errors, in units of the scale.
struct Levels {
  Vec step, base, error;
};

CPU_BACKEND_INLINE Vec level_code(Vec x, Vec base, Vec per_step) {
  return from_int(held(round_to_int((x + (128.0f - base)) * per_step), 0, 15));
}

// The levels of one step, around a base that is fitted once.
static inline Levels levels_of_step(const Pieces& pieces, Vec step, Vec middle, Vec mean) {
  const Vec per_step = 1.0f / step;
  const auto whole = [&](Vec base) CPU_BACKEND_LAMBDA {
    return max(min(from_int(round_to_int(base)), 255.0f - 15.0f * step), Vec{});
  };
  const Vec around = whole(middle + 128.0f - 7.5f * step);
  const Vec mean_code = pieces.sum([&](Vec x) CPU_BACKEND_LAMBDA {
    return level_code(x, around, per_step);
  }) / pieces.sizes;
  const Vec base = whole(mean + 128.0f - step * mean_code);
  const Vec error = pieces.sum([&](Vec x) CPU_BACKEND_LAMBDA {
    const Vec d = level_code(x, base, per_step) * step + (base - 128.0f) - x;
    return d * d;
  });
  return {step, base, error};
}

static inline Levels best_levels(const Pieces& pieces) {
  constexpr float kLeast = 0.75f;
  Vec low = pieces.channel(0), high = low;
  for (int64_t c = 1; c < Pieces::kSize; ++c) {
    const Vec x = pieces.channel(c);
    low = min(low, x);
    high = max(high, x);
  }
  const Vec mean = pieces.sum([](Vec x) CPU_BACKEND_LAMBDA { return x; }) / pieces.sizes;
  const Vec middle = (low + high) / 2.0f;
  const Vec reach = (high - low) / 15.0f;
  const Vec nearest = from_int(round_to_int(reach));
  const Vec most = held(select(nearest < reach, nearest + 1.0f, nearest), 1.0f, 17.0f);
  const Vec least = max(reach * kLeast, broadcast(1.0f));
  Levels best = levels_of_step(pieces, most, middle, mean);
  const int others = static_cast<int>(max_lanes(most - least));
  for (int i = 1; i <= others; ++i) {
    const Vec step = most - static_cast<float>(i);
    const Levels tried = levels_of_step(pieces, max(step, broadcast(1.0f)), middle, mean);
    const VecI better = (step >= least) & (tried.error < best.error);
    best = {select(better, step, best.step), select(better, tried.base, best.base),
            select(better, tried.error, best.error)};
  }
  return best;
}

// Row r, whose scales are there; returns the sum of squared errors.
template <class T>
CPU_BACKEND_INLINE double code_row4(const QuantWeightArgs& args, int64_t r, const T* x) {
  const fp16_t* scales = static_cast<const fp16_t*>(args.scales) + r * args.groups();
  uint16_t* levels = args.levels + r * ceil_div(args.size, Pieces::kSize);
  double lost = 0.0;
  Pieces pieces;
  for (int64_t begin = 0; begin < args.size; begin += Pieces::kSpan) {
    const int64_t span = args.size - begin < Pieces::kSpan ? args.size - begin : Pieces::kSpan;
    const auto scale = [&](int64_t i) CPU_BACKEND_LAMBDA {
      return to_float(scales[(begin + i) / args.group]);
    };
    pieces.load_from(x + begin, span,
                     [&](int64_t i) CPU_BACKEND_LAMBDA { return divisor_of(scale(i)); });
    const Levels best = best_levels(pieces);
    const Vec per_step = 1.0f / best.step;
    int8_t codes[Pieces::kSpan];
    for (int64_t i = 0; i < span; i += Pieces::kSize) {
      const int64_t lane = i / Pieces::kSize;
      const float step = best.step[lane], base = best.base[lane];
      const double unit = static_cast<double>(scale(i));
      lost += static_cast<double>(best.error[lane]) * unit * unit;
      *levels++ = static_cast<uint16_t>(step + 256.0f * base);
      for (int64_t c = i; c < i + Pieces::kSize; c += kLanes)
        store(codes + c, level_code(load(pieces.units + c), broadcast(base),
                                    broadcast(static_cast<float>(per_step[lane]))));
    }
    __builtin_memcpy(args.codes + r * args.size + begin, codes, static_cast<size_t>(span));
  }
  return lost;
}

template <class T>
void quantize_weight(const QuantWeightArgs& args, Slice rows) {
  const int64_t groups = args.groups();
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = static_cast<const T*>(args.x) + r * args.x_stride;
    uint8_t* codes = args.codes + r * args.size;
    double all = 0.0;
    WeightGroup group;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t begin = g * args.group;
      group.load_from(x + begin, args.size - begin < args.group ? args.size - begin : args.group);
      const float scale = scale_of(group);
      static_cast<fp16_t*>(args.scales)[r * groups + g] = round_to_fp16(scale);
      if (args.bits == 4) {
        all += static_cast<double>(group.sum([](Vec v) CPU_BACKEND_LAMBDA { return v * v; }));
        continue;
      }
      float coded[WeightGroup::kMost];
      code_group8(group, scale, coded);
      for (int64_t i = 0; i < group.size; ++i) codes[begin + i] = static_cast<uint8_t>(coded[i]);
    }
    if (args.bits == 4) {
      args.squares[2 * r] = code_row4(args, r, x);
      args.squares[2 * r + 1] = all;
    }
  }
}

}  // namespace CPU_BACKEND_NAMESPACE
