// Rows of 16-bit integers, with a scale each: what queries and probabilities are to the keys and
// values of an int8 cache.  Sums of kMaxIntegerDepth products are exact: so a row's result does not
// depend on the rows or panels taken with it.
//
// Pairs     two multiply-adds of 16 bits in one instruction: the numbers as they are.
// Planes    where products of four bytes are fast: x = 256 * upper + lower, both signed as the
//           codes are.
//   kHasPlanes  eight upper bytes of a row and then their lower ones.  In blocks these are the two
//               rows that meet two columns, so that one row fills a block; else each quad of them
//               meets four columns.
//   kHasTiles   a part of the upper bytes and then of the lower ones, each a row of a tile.
#pragma once

#include "core/gemm_plan.h"
#include "isa/codes.h"
#include "isa/dot.h"

namespace CPU_BACKEND_NAMESPACE {

constexpr int64_t kMaxIntegerDepth = 512;  // 512 * 32767 * 127 < 2^31

constexpr float kIntegerLimit = kHasPlanes || kHasTiles ? 127 * 256 + 127 : 32767;  // of |x|

// How far the numbers of a row go.
struct IntegerRange {
  VecI bits{};  // of |x|: in the order of the numbers, infinity and NaN behind them

  CPU_BACKEND_INLINE void add(Vec v) {
    const VecI other = (VecI)as_bits(abs(v));
    bits = other > bits ? other : bits;
  }
  CPU_BACKEND_INLINE float largest() const {
    const int32_t most = max_lanes(bits);
    return load_raw<float>(&most);
  }
  // max|x| / limit; NaN where a number is not finite.
  CPU_BACKEND_INLINE float scale(float limit) const { return largest() / limit + largest() * 0.0f; }
  CPU_BACKEND_INLINE float inverse(float limit) const {
    return largest() >= 0x1p-111f ? limit / largest() : 0.0f;
  }
};

template <class T>
CPU_BACKEND_INLINE IntegerRange integer_range(const T* x, int64_t size) {
  IntegerRange range;
  for_each_vector(size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA { range.add(load_n(x + i, n)); });
  return range;
}

#if defined(CPU_BACKEND_TILES)
// Numbers of a plane that lie together: equal parts of a depth, rounded up to 16, that fill rows of
// a tile as far as they go.
CPU_BACKEND_INLINE int64_t integer_part(int64_t depth) {
  const int64_t units = ceil_div(depth, 16);
  if (units <= 4) return 16 * units;
  return units % 4 == 0 ? 64 : units % 3 == 0 ? 48 : units % 2 == 0 ? 32 : 16;
}

// Turns `size` numbers of this range at the beginning of a row of `stride`, whole vectors, into
// such integers where they lie; with a scale below 2^-126 all count as zero.
CPU_BACKEND_INLINE void to_integer_row(float* x, int64_t size, int64_t stride,
                                       const IntegerRange& range) {
  const float inverse = range.inverse(kIntegerLimit);
  int8_t* to = reinterpret_cast<int8_t*>(x);
  for (int64_t begin = 0; begin < size; begin += kMaxIntegerDepth) {
    const int64_t end = size - begin < kMaxIntegerDepth ? size : begin + kMaxIntegerDepth;
    const int64_t part = integer_part(end - begin);
    for (int64_t k = begin; k < end; k += part, to += 2 * part) {
      VecU numbers[64 / kLanes];  // all are read before the first is written
      for (int64_t i = 0; i < part; i += kLanes)
        numbers[i / kLanes] = k + i < end ? (VecU)round_to_int(load(x + k + i) * inverse) : VecU{};
      for (int64_t i = 0; i < part; i += kLanes) {
        store_raw(to + i, narrow_to_bytes((numbers[i / kLanes] + 128u) >> 8));
        store_raw(to + part + i, narrow_to_bytes(numbers[i / kLanes]));
      }
    }
  }
  store_raw(x + stride - 1, range.scale(kIntegerLimit));
}

// The numbers of a row of fp32's size, and their scale.
CPU_BACKEND_INLINE const int16_t* integers_of(const float* row) {
  return reinterpret_cast<const int16_t*>(row);
}
CPU_BACKEND_INLINE float integer_scale(const int16_t* a, int64_t a_stride) {
  return load_raw<float>(a + a_stride - 2);
}
#else
// Before the numbers of a row lies its scale, in planes in as many bytes as eight of them have.
constexpr int64_t kScaleHalves = kHasPlanes ? 8 : 2;

// Turns `size` numbers of this range at the beginning of a row, whole vectors, into such integers
// where they lie; with a scale below 2^-126 all count as zero.
CPU_BACKEND_INLINE void to_integer_row(float* x, int64_t size, int64_t, const IntegerRange& range) {
  const float inverse = range.inverse(kIntegerLimit);
  int16_t* row = reinterpret_cast<int16_t*>(x) + kScaleHalves;
#if defined(CPU_BACKEND_PLANES)
  for (int64_t i = 0; i < size; i += 2 * kLanes) {
    const Vec second = i + kLanes < size ? load(x + i + kLanes) : Vec{};
    store_planes(row + i, round_to_int16(load(x + i) * inverse), round_to_int16(second * inverse));
  }
#else
  for (int64_t i = 0; i < size; i += kLanes)
    store_raw(row + i, round_to_int16(load(x + i) * inverse));
#endif
  store_raw(x, range.scale(kIntegerLimit));
}

// The numbers of a row of fp32's size, and their scale.
CPU_BACKEND_INLINE const int16_t* integers_of(const float* row) {
  return reinterpret_cast<const int16_t*>(row) + kScaleHalves;
}
CPU_BACKEND_INLINE float integer_scale(const int16_t* a, int64_t) {
  return load_raw<float>(a - kScaleHalves);
}
#endif

}  // namespace CPU_BACKEND_NAMESPACE
