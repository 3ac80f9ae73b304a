// Activations on their way to a quantized weight: rows of integers, with a scale and a sum per
// segment (core/quant.h).
//
// Row       quant_row_bytes() bytes: codes of every step, then float scales [segments], then what
//           the products of each segment start from, int32 [segments]: minus the sum of the codes,
//           times the middle of the weight's codes where that is the zero; with ZeroKind::kOffset
//           the sum times the scale, fp32, which is all that an offset is multiplied with.  With
//           ZeroKind::kLevels then the sums of every kLevelChannels codes, int32 [pieces].  A step
//           is 8 channels in the order in which the weight has them; what a group lacks to full
//           steps is zero.
// Tile      `tile_rows` neighbouring rows, the last tile fewer, step by step and segment by segment
//           among each other, so that a register tile finds all rows at fixed distances from one
//           pointer: with an address for each, those went through memory in every segment (int8
//           tiles of 12 rows spent 37 % outside of their dot products).
// Matrix    where the target has matrix tiles, a tile of more than kQuantRows rows keeps together
//           matrix_steps() steps of a row, which is a row of a left operand.  The last ones of a
//           segment are filled up with zeros.  Operands have equal numbers of rows, so the last one
//           may read past the tile's rows; these products are dropped.
// Pairs     eight int16 in a row.  For 16-bit activations, and for codes less their zero point.
// Quads     eight int8, each four in the order of the bytes of a packed word.  For symmetric 8 bits
//           where the target sums quads of such codes exactly.
// Planes    of pairs, in matrix tiles and where the target multiplies quads of bytes: for all rows
//           of the tile the upper bytes, which are signed, then the lower ones, which are not, both
//           in the order of quads.  code * pair = 256 * (code * upper) + code * lower.
// Signs     where bytes of equal signs alone are multiplied, signed ones that meet codes of 8 bits
//           are kept plus 128.
// Schemes   kInt16, kInt8  scale = max|x| of the segment / 32767 or 127, code = round(x / scale)
//           kInt8Token     the same over the row; x / scale is a true division
//           ...Azp         range [min(x, 0), max(x, 0)], scale = range / 255, zero =
//                          round(-128 - min / scale), code = round(x / scale) within
//                          [-128 - zero, 127 - zero]: compressed-tensors' definition less the zero
//           kInt8Static*   the same with scale, and zero, given
//           Ties go to even.  A segment or row whose largest magnitude is below 2^-100 counts as 0;
//           infinity or NaN makes its scale NaN, and with it the result.
#pragma once

#include "core/quant.h"
#include "isa/dot.h"
#include "kernels/formats/integer_pack.h"

namespace CPU_BACKEND_NAMESPACE {

static inline bool uses_quads(const QuantLayout& layout) {
  switch (layout.activations) {
    case Activations::kInt8:
    case Activations::kInt8Token:
    case Activations::kInt8Static:
      // Few rows and tables of narrow codes are rare together: they share the code of 16 bits.
      if (layout.kind == CodeKind::kTable) return kQuads8 && layout.bits == 4;
      return layout.bits <= 4 || kQuads8;
    default:
      return false;
  }
}

// Whether rows meet codes of up to 255, not of up to 15.
static inline bool meets_bytes(const QuantLayout& layout) {
  return layout.bits == 8 || layout.kind == CodeKind::kTable;
}

// Bytes of one channel of a row.
static inline int64_t channel_bytes(const QuantLayout& layout) {
  return uses_quads(layout) ? 1 : 2;
}

// Rows of the register tile: 4 x 2 sums, two vectors of codes, activations, a product and the mask
// fit 16 registers; 6 rows spill, a third of the speed at groups of 32.
constexpr int kQuantRows = kMaxRows == 12 ? 12 : 4;

// Rows of a matrix tile, which take a panel from memory once.
constexpr int kMatrixRows = 256;

constexpr int kMostRows = kHasTiles ? kMatrixRows : kQuantRows;

CPU_BACKEND_INLINE bool in_matrix(const QuantRows& rows) {
  return kHasTiles && rows.tile_rows > kQuantRows;
}

// Equal parts of a segment.
CPU_BACKEND_INLINE int64_t matrix_steps(const QuantLayout& layout) {
  const int64_t segment = layout.segment_steps();
  return ceil_div(segment, ceil_div(segment, kMatrixSteps));
}

// Steps of a row, with those that fill up segments.
static inline int64_t row_steps(const QuantLayout& layout) {
  if (!kHasTiles) return layout.steps();
  const int64_t segment = layout.segment_steps(), part = matrix_steps(layout);
  const auto of_group = [&](int64_t channels) CPU_BACKEND_LAMBDA {
    const int64_t steps = ceil_div(channels, QuantLayout::kStep);
    return steps / segment * round_up(segment, part) + round_up(steps % segment, part);
  };
  return (layout.groups() - 1) * of_group(layout.group) + of_group(layout.last_group());
}
static inline int64_t row_codes_bytes(const QuantLayout& layout) {
  return row_steps(layout) * QuantLayout::kStep * channel_bytes(layout);
}
static inline int64_t quant_row_bytes(const QuantLayout& layout) {
  return round_up(row_codes_bytes(layout) + layout.segments() * 8 + layout.pieces() * 4, 64);
}

// Four codes of one byte in memory order become the word that byte_of_channel() describes.
CPU_BACKEND_INLINE VecU order_quads(VecU w) {
  const VecU second = w >> 8 & 0x000000ffu;
  const VecU third = w >> 16 & 0x000000ffu;
  if (kFirstIsLow) return (w & 0xff0000ffu) | second << 16 | third << 8;
  return w >> 24 << 16 | second << 24 | third | (w & 0xffu) << 8;
}

constexpr bool kMayHavePlanes = kHasTiles || kHasPlanes;

// A row under construction among the `together` rows of its tile.
struct QuantRow {
  char* codes;
  float* scales;
  int32_t* starts;
  int32_t* pieces;
  int64_t together;
  int64_t part = 1, done = 0;  // steps of a row that lie together, and how many of them are written
  bool planes = false;
  uint32_t signs = 0;  // of four signed bytes, where they are kept plus 128

  QuantRow(const QuantLayout& layout, const QuantRows& rows, int64_t r) {
    const int64_t first = r / rows.tile_rows * rows.tile_rows;
    together = rows.m - first < rows.tile_rows ? rows.m - first : rows.tile_rows;
    char* tile = static_cast<char*>(rows.data) + first * quant_row_bytes(layout);
    if (in_matrix(rows)) part = matrix_steps(layout);
    planes = (kHasPlanes || in_matrix(rows)) && !uses_quads(layout);
    const int64_t step = QuantLayout::kStep * (planes ? 1 : channel_bytes(layout));
    codes = tile + (r - first) * part * step;
    if (!kSignedBytes && meets_bytes(layout)) signs = 0x80808080u;
    scales = reinterpret_cast<float*>(tile + together * row_codes_bytes(layout)) + (r - first);
    starts = reinterpret_cast<int32_t*>(scales + together * layout.segments());
    pieces = starts + together * layout.segments();
  }
  // Four signed bytes in memory order as a word that is kept.
  CPU_BACKEND_INLINE VecU signed_quads(VecU quads) const {
    return kSignedBytes ? order_quads(quads) : order_quads(quads) ^ signs;
  }
  // Whole steps of channels of kBytes each; with planes the lower bytes lie `lower` behind.
  template <int kBytes>
  CPU_BACKEND_INLINE void add_steps(const void* from, int64_t channels, int64_t lower = 0) {
    constexpr int64_t kStepBytes = QuantLayout::kStep * kBytes;
    const char* step = static_cast<const char*>(from);
    for (int64_t k = 0; k < channels; k += QuantLayout::kStep, step += kStepBytes) {
      __builtin_memcpy(codes, step, kStepBytes);
      if (kMayHavePlanes && planes)
        __builtin_memcpy(codes + together * part * kStepBytes, step + lower, kStepBytes);
      end_step<kStepBytes>();
    }
  }
  template <int64_t kStepBytes>
  CPU_BACKEND_INLINE void end_step() {
    if constexpr (kMayHavePlanes) {
      codes += kStepBytes;
      if (++done < part) return;
      done = 0;
      codes += ((planes ? 2 : 1) * together - 1) * part * kStepBytes;
    } else {
      codes += together * kStepBytes;
    }
  }
  CPU_BACKEND_INLINE void end_piece(int32_t sum) {
    *pieces = sum;
    pieces += together;
  }
  CPU_BACKEND_INLINE void end_segment(const QuantLayout& layout, float scale, int32_t sum) {
    constexpr char kZeros[QuantLayout::kStep] = {};
    while (kHasTiles && done > 0) add_steps<1>(kZeros, QuantLayout::kStep);
    *scales = scale;
    switch (layout.zero) {
      case ZeroKind::kMiddle:
      case ZeroKind::kLevels:
        *starts = -sum * layout.middle();
        break;
      case ZeroKind::kPoint:
        *starts = -sum;
        break;
      case ZeroKind::kOffset:
        store_raw(starts, static_cast<float>(sum) * scale);
        break;
    }
    scales += together;
    starts += together;
  }
};

constexpr int kBlock = QuantLayout::kStep * QuantLayout::kSegmentSteps;  // channels at a time

// Adds `size` codes, a multiple of 8 and at most kBlock, to the row and returns their sum.  code(i)
// is a vector of them; one of AVX-512 may reach past `size`, where codes are zero.
template <class Code>
CPU_BACKEND_INLINE int32_t add_codes(int64_t size, bool quads, QuantRow& row, const Code& code) {
  char narrow[2 * kBlock];
  VecI sum{};
  if (kMayHavePlanes && row.planes) {
    for (int64_t i = 0; i < size; i += kLanes) {
      const VecI v = code(i);
      sum = sum + v;
      store_raw(narrow + i, narrow_to_bytes((VecU)(v >> 8)));
      store_raw(narrow + kBlock + i, narrow_to_bytes((VecU)v));
    }
    for (int64_t i = 0; i < kBlock; i += kVectorBytes) {
      store_raw(narrow + i, row.signed_quads(load_raw<VecU>(narrow + i)));
      store_raw(narrow + kBlock + i, order_quads(load_raw<VecU>(narrow + kBlock + i)));
    }
    row.add_steps<1>(narrow, size, kBlock);
  } else if (quads) {
    for (int64_t i = 0; i < size; i += kLanes) {
      const VecI v = code(i);
      sum = sum + v;
      store_raw(narrow + i, narrow_to_bytes((VecU)v));
    }
    for (int64_t i = 0; i < size; i += kVectorBytes)
      store_raw(narrow + i, row.signed_quads(load_raw<VecU>(narrow + i)));
    row.add_steps<1>(narrow, size);
  } else {
    for (int64_t i = 0; i < size; i += kLanes) {
      const VecI v = code(i);
      sum = sum + v;
      store_raw(narrow + 2 * i, narrow_bits((VecU)v));
    }
    row.add_steps<2>(narrow, size);
  }
  return sum_lanes(sum);
}

// The same for all of a segment of at most kBlock codes, whose pieces the row keeps the sums of.
template <class Code>
CPU_BACKEND_INLINE int32_t add_pieces(const QuantLayout& layout, int64_t size, bool quads,
                                      QuantRow& row, const Code& code) {
  if (layout.zero != ZeroKind::kLevels) return add_codes(size, quads, row, code);
  int32_t total = 0;
  for (int64_t first = 0; first < size; first += QuantLayout::kLevelChannels) {
    const int64_t left = size - first;
    const int32_t sum =
        add_codes(left < QuantLayout::kLevelChannels ? left : QuantLayout::kLevelChannels, quads,
                  row, [&](int64_t i) CPU_BACKEND_LAMBDA { return code(first + i); });
    row.end_piece(sum);
    total += sum;
  }
  return total;
}

// Least and largest of a row or segment; infinity and NaN are both above every number.
struct Range {
  VecI largest{};  // bits of magnitudes
  Vec low{}, high{};

  CPU_BACKEND_INLINE void add(Vec x) {
    const VecI magnitude = (VecI)(as_bits(x) & 0x7fffffffu);
    largest = magnitude > largest ? magnitude : largest;
    low = min(low, x);
    high = max(high, x);
  }
  // 0 when too small to divide by, NaN when not finite.
  float max_magnitude() const {
    const int32_t bits = max_lanes(largest);
    if (bits >= 0x7f800000) return bits_float(0x7fc00000u);
    const float x = bits_float(static_cast<uint32_t>(bits));
    return x < 0x1p-100f ? 0.0f : x;
  }
  float least() const { return -max_lanes(-low); }
  float most() const { return max_lanes(high); }
};

// How codes are made: round(x * factor) or round(x / divisor), clamped.
struct Rounding {
  float scale;   // what one code is worth
  float factor;  // used unless 0
  float divisor;
  float lowest, highest;

  static Rounding by_magnitude(float magnitude, float highest) {
    const float factor = magnitude > 0.0f ? highest / magnitude : 0.0f;
    return {magnitude / highest, factor, 1.0f, -highest, highest};
  }
  static Rounding by_scale(float scale, float zero) {
    return {scale, 0.0f, scale > 0.0f ? scale : 1.0f, -128.0f - zero, 127.0f - zero};
  }
  CPU_BACKEND_INLINE VecI operator()(Vec x) const {
    const Vec y = factor != 0.0f ? x * factor : x / divisor;
    return round_to_int(max(min(y, broadcast(highest)), broadcast(lowest)));
  }
};

template <class T>
CPU_BACKEND_INLINE void load_channels(const QuantRowsArgs& args, const T* x, int64_t k, int64_t n,
                                      int64_t size, float* values) {
  // What no channel is written to below.
  const int64_t whole = args.channels ? 0 : n - n % kLanes;
  for (int64_t i = whole; i < size; i += kLanes) store(values + i, Vec{});
  if (args.channels) {
    for (int64_t i = 0; i < n; ++i) {
      const int32_t channel = args.channels[k + i];
      if (channel >= 0) values[i] = cpu_backend::to_float(x[channel]);
    }
    return;
  }
  for_each_vector(n, [&](int64_t i, int lanes)
                         CPU_BACKEND_LAMBDA { store(values + i, load_n(x + k + i, lanes)); });
}

static inline Range range_of(const float* values, int64_t size) {
  Range range;
  for (int64_t i = 0; i < size; i += kLanes) range.add(load(values + i));
  return range;
}

template <class T>
Rounding row_rounding(const QuantRowsArgs& args, const T* x) {
  switch (args.layout.activations) {
    case Activations::kInt8Static:
      return Rounding::by_scale(*args.static_scale, 0.0f);
    case Activations::kInt8StaticAzp:
      return Rounding::by_scale(*args.static_scale, static_cast<float>(*args.static_zero));
    default:
      break;
  }
  Range range;
  for_each_vector(args.channels_in, [&](int64_t i, int lanes)
                                        CPU_BACKEND_LAMBDA { range.add(load_n(x + i, lanes)); });
  const float magnitude = range.max_magnitude();
  if (args.layout.activations == Activations::kInt8Token || !(magnitude > 0.0f)) {
    return Rounding::by_scale(magnitude / 127.0f, 0.0f);
  }
  const float low = range.least();
  const float scale = (range.most() - low) / 255.0f;
  const float zero = static_cast<float>(round_to_int(broadcast(-128.0f - low / scale))[0]);
  return Rounding::by_scale(scale, zero);
}

template <class T>
void quantize_rows(const QuantRowsArgs& args, Slice rows) {
  const QuantLayout& layout = args.layout;
  const bool quads = uses_quads(layout);
  const bool per_segment = layout.scale_per_segment();
  const float highest = layout.activations == Activations::kInt16 ? 32767.0f : 127.0f;
  const int64_t segment = layout.segment_steps() * QuantLayout::kStep;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = static_cast<const T*>(args.x) + r * args.x_stride;
    QuantRow row(layout, args.rows, r);
    Rounding rounding{};
    if (!per_segment) rounding = row_rounding(args, x);
    for (int64_t begin = 0; begin < layout.k; begin += layout.group) {
      const int64_t end = begin + layout.group < layout.k ? begin + layout.group : layout.k;
      for (int64_t first = begin; first < end; first += segment) {
        const int64_t last = first + segment < end ? first + segment : end;
        int32_t sum = 0;
        for (int64_t k = first; k < last; k += kBlock) {
          const int64_t n = last - k < kBlock ? last - k : kBlock;
          float values[kBlock];
          const int64_t size = round_up(n, QuantLayout::kStep);
          load_channels(args, x, k, n, size, values);
          if (per_segment) {
            rounding = Rounding::by_magnitude(range_of(values, size).max_magnitude(), highest);
          }
          sum += add_pieces(layout, size, quads, row, [&](int64_t i) CPU_BACKEND_LAMBDA {
            return rounding(load(values + i));
          });
        }
        row.end_segment(layout, rounding.scale, sum);
      }
    }
  }
}

// The host's own int8 activations: codes with their scale, and zero point, per row.
//
// Static: scale and zero are given, one for all rows.  Dynamic: symmetric scale = max|x| / 127, or
// asymmetric scale = (max - min) / 255 and zero = round(-128 - min / scale); unlike above, the
// range need not reach zero, so zero may be any integer.
template <class T>
void int8_rows(const Int8RowsArgs& args, Slice rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = static_cast<const T*>(args.x) + r * args.x_stride;
    float scale = args.is_static ? *args.scales : 1.0f;
    float zero = args.is_static && args.zeros ? static_cast<float>(*args.zeros) : 0.0f;
    if (!args.is_static) {
      const float first = cpu_backend::to_float(x[0]);
      Vec low = broadcast(first);
      Vec high = low;
      for_each_vector(args.size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
        Vec v = load_n(x + i, n);
        if (n < kLanes) v = select(lane_index(0) < n, v, broadcast(first));
        low = min(low, v);
        high = max(high, v);
      });
      const float least = -max_lanes(-low);
      const float most = max_lanes(high);
      scale = args.zeros ? (most - least) / 255.0f : (-least > most ? -least : most) / 127.0f;
      if (args.zeros && scale > 0.0f) {
        const float limit = 2147483520.0f;  // the largest float below 2^31
        zero = __builtin_rintf(-128.0f - least / scale);
        zero = zero > limit ? limit : zero < -limit ? -limit : zero;
      }
      args.scales[r] = scale;
      if (args.zeros) args.zeros[r] = static_cast<int32_t>(zero);
    }
    const float divisor = scale > 0.0f ? scale : 1.0f;
    for_each_vector(args.size, [&](int64_t i, int n) CPU_BACKEND_LAMBDA {
      const Vec y = load_n(x + i, n) / divisor;
      const Vec near = select(abs(y) < 4194304.0f, from_int(round_to_int(y)), y);
      const Vec code = near + zero;
      const VecI whole = round_to_int(max(min(code, broadcast(127.0f)), broadcast(-128.0f)));
      for (int lane = 0; lane < n; ++lane)
        args.codes[r * args.size + i + lane] = static_cast<int8_t>(whole[lane]);
    });
  }
}

// fp8 codes, as the host makes them when it gives merged weights one scale: only at load.
template <class T>
void fp8_rows(const Fp8RowsArgs& args, Slice rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const T* x = static_cast<const T*>(args.x) + r * args.x_stride;
    const float* scales = args.scales + r / args.row_group * args.scale_row_stride;
    for (int64_t i = 0; i < args.size; ++i) {
      const float scale = scales[i / args.column_group * args.scale_column_stride];
      args.codes[r * args.size + i] =
          static_cast<uint8_t>(round_to_fp8(cpu_backend::to_float(x[i]) * (1.0f / scale)));
    }
  }
}

// Rows of codes that the caller has; the layout's activations say how they are kept.
static inline void quantize_given(const QuantGivenArgs& args, Slice rows) {
  const QuantLayout& layout = args.layout;
  const bool quads = uses_quads(layout);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const int8_t* x = args.codes + r * args.codes_stride;
    QuantRow row(layout, args.rows, r);
    for (int64_t begin = 0; begin < layout.k; begin += layout.group) {
      const int64_t end = begin + layout.group < layout.k ? begin + layout.group : layout.k;
      int32_t sum = 0;
      for (int64_t k = begin; k < end; k += kBlock) {
        const int64_t n = end - k < kBlock ? end - k : kBlock;
        int32_t codes[kBlock] = {};
        // NOLINTNEXTLINE(bugprone-signed-char-misuse): numbers, not characters
        for (int64_t i = 0; i < n; ++i) codes[i] = x[k + i];
        sum += add_pieces(layout, round_up(n, QuantLayout::kStep), quads, row,
                          [&](int64_t i) CPU_BACKEND_LAMBDA { return load_raw<VecI>(codes + i); });
      }
      row.end_segment(layout, args.scales[r * args.scale_stride], sum);
    }
  }
}

}  // namespace CPU_BACKEND_NAMESPACE
