// What the quantized kernels are given: plain data, like core/view.h.  The packed layout is in
// kernels/formats/integer_pack.h, the form of quantized activations in kernels/quant_rows.h.
#pragma once

#include "core/slice.h"
#include "core/view.h"

// Inlined always: an out-of-line copy of a member would be shared between instruction sets.
#define CPU_BACKEND_MEMBER inline __attribute__((always_inline))

namespace cpu_backend {

// What a code of a weight stands for.
enum class CodeKind : int {
  kInteger,  // see ZeroKind
  kFp8,      // e4m3: weight = scale * code; 8 bits, no zero, activations kFloat
  kTable,    // 2 to 4 bits, no zero: weight = scale * (table[q] - 128)
};

// What stands beside the scale of a group; q is the unsigned code of a weight.
enum class ZeroKind : int {
  kMiddle,  // nothing: weight = scale * (q - 2^(bits - 1))
  kPoint,   // a whole number: weight = scale * (q - zero), 0 <= zero <= 2^bits
  kOffset,  // any number: weight = scale * q + zero
  // Two whole numbers for every QuantLayout::kLevelChannels channels, by which 4-bit codes stand
  // for 8-bit ones: weight = scale * (step * q + base - 128), step >= 0, base >= 0, 15 * step +
  // base <= 255.  Groups have at most 128 channels; where there are several, a multiple of
  // kLevelChannels.
  kLevels,
};

// How activations become integers before they meet the codes.
enum class Activations : int {
  kInt16,          // per row and segment: scale = max|x| / 32767
  kInt8,           // per row and segment: scale = max|x| / 127
  kInt8Token,      // per row: scale = max|x| / 127
  kInt8TokenAzp,   // per row, asymmetric: scale = (max - min) / 255
  kInt8Static,     // one scale for all rows
  kInt8StaticAzp,  // one scale and one zero point for all rows
  kFloat,          // not at all: beside fp8 codes (kernels/formats/fp8.h)
};

// Shape and format of a packed weight [n, k].
struct QuantLayout {
  // Codes are stored in steps of so many channels; each group starts with a new step.
  static constexpr int64_t kStep = 8;
  // At most so many steps of 16-bit activations and 8-bit codes sum to less than 2^31.
  static constexpr int64_t kSegmentSteps = 16;
  static constexpr int64_t kLevelChannels = 32;
  // At most so many rows meet codes that expand as they are.
  static constexpr int64_t kFewRows = 4;

  int bits;  // 2, 3, 4 or 8
  ZeroKind zero;
  DType scale_type;  // of scales and zeros, as stored
  Activations activations;
  int64_t n, k;
  int64_t group;  // channels that share a scale, 1 to k; the last group may be shorter
  CodeKind kind = CodeKind::kInteger;
  int parts = 1;           // weights side by side, see kernels/epilogue.h
  uint8_t table[16] = {};  // kTable: the 8-bit codes that codes stand for

  CPU_BACKEND_MEMBER int64_t groups() const { return ceil_div(k, group); }
  CPU_BACKEND_MEMBER int64_t group_steps() const { return ceil_div(group, kStep); }
  CPU_BACKEND_MEMBER int64_t last_group() const { return k - (groups() - 1) * group; }
  CPU_BACKEND_MEMBER int64_t steps() const {
    return (groups() - 1) * group_steps() + ceil_div(last_group(), kStep);
  }

  // A segment is the piece of a group whose activations share a scale.  Where the scale belongs to
  // the row it is the whole group: a product over all of k is then one integer.
  CPU_BACKEND_MEMBER bool scale_per_segment() const {
    return activations == Activations::kInt16 || activations == Activations::kInt8;
  }
  CPU_BACKEND_MEMBER int64_t segment_steps() const {
    const int64_t whole = group_steps();
    return scale_per_segment() && whole > kSegmentSteps ? kSegmentSteps : whole;
  }
  CPU_BACKEND_MEMBER int64_t segments_of(int64_t channels) const {
    return ceil_div(ceil_div(channels, kStep), segment_steps());
  }
  CPU_BACKEND_MEMBER int64_t segments() const {
    return (groups() - 1) * segments_of(group) + segments_of(last_group());
  }

  // Levels: sums of the activations of a row that bases are multiplied with.
  CPU_BACKEND_MEMBER int64_t pieces() const {
    return zero == ZeroKind::kLevels ? ceil_div(k, kLevelChannels) : 0;
  }

  // The code that stands for zero where no zero is stored.
  CPU_BACKEND_MEMBER int middle() const {
    return kind == CodeKind::kTable || zero == ZeroKind::kLevels ? 128 : 1 << (bits - 1);
  }

  // Whether codes stand for 8-bit ones.
  CPU_BACKEND_MEMBER bool stand_for_bytes() const {
    return zero == ZeroKind::kLevels || kind == CodeKind::kTable;
  }
  // Whether many rows meet other codes than those that are stored, and these: 8-bit ones, or where
  // none are stood for, 4-bit ones.
  CPU_BACKEND_MEMBER bool expands() const { return bits < 4 || stand_for_bytes(); }
  CPU_BACKEND_MEMBER QuantLayout expanded() const {
    QuantLayout layout = *this;
    if (stand_for_bytes()) {
      layout.bits = 8;
      layout.zero = ZeroKind::kMiddle;
      layout.kind = CodeKind::kInteger;
    } else if (bits < 4) {
      layout.bits = 4;
    }
    return layout;
  }
  // What meets `m` rows of activations.
  CPU_BACKEND_MEMBER QuantLayout multiplied(int64_t m) const {
    return m <= kFewRows ? *this : expanded();
  }
};

// Where the codes of an unpacked weight lie.
enum class CodeOrder : int {
  kBytes,        // one code per byte, of column n and channel k at n * n_stride + k * k_stride
  kPairsOfK,     // two codes of neighbouring channels per byte, the first one low, at k / 2
  kWordsOfK,     // per column a stream of bits along k in 32-bit words, lowest bits first
  kWordsOfN,     // per channel a stream of bits along n
  kWordsOfNAwq,  // the same with the eight codes of each word in the order 0 2 4 6 1 3 5 7
};

struct QuantPackArgs {
  QuantLayout layout;
  CodeOrder order;
  int source_bits;  // 2 to 8, at most layout.bits
  int add;          // to each code: what moves its middle, or its lowest value, to where q has it
  ConstData codes;
  int64_t n_stride, k_stride;  // in bytes or words; along a stream, the distance of its words
  const int32_t* channels;     // the source channel of each k, or -1 for none; null: k itself
  ConstData scales;            // [groups, n], of layout.scale_type
  int64_t scale_group_stride, scale_n_stride;
  ConstData zeros;  // the same, with kPoint and kOffset; kLevels: uint16 step + 256 * base
  int64_t zero_group_stride, zero_n_stride;
  Data packed;
};

// A weight [rows, size] as codes with a scale per row and group of channels
// (kernels/quant_weight.h): scale * (code - 128) with 8 bits, ZeroKind::kLevels with 4.
struct QuantWeightArgs {
  int bits;
  int64_t group;  // channels, at most kMostGroup; 4 bits: as kLevels has them
  ConstData x;    // of the storage type
  int64_t x_stride, size;
  uint8_t* codes;    // [rows, size]
  Data scales;       // fp16 [rows, groups]
  uint16_t* levels;  // 4 bits: [rows, pieces of kLevelChannels], step + 256 * base
  double* squares;   // 4 bits: [rows][2], the sums of squared errors and of squares

  static constexpr int64_t kMostGroup = 256;
  CPU_BACKEND_MEMBER int64_t groups() const { return ceil_div(size, group); }
};

// Turns rows of activations into the integers that gemm() reads.
struct QuantRowsArgs {
  QuantLayout layout;  // QuantLayout::multiplied(rows.m)
  ConstData x;         // [m, channels] of the storage type
  int64_t x_stride;
  int64_t channels_in;         // columns of x
  const int32_t* channels;     // as in QuantPackArgs
  const float* static_scale;   // kInt8Static*
  const int32_t* static_zero;  // kInt8StaticAzp
  QuantRows rows;
};

// x [rows, size] as int8 codes [rows, size]; scales and zeros are read when static, else written.
struct Int8RowsArgs {
  ConstData x;
  int64_t x_stride, size;
  bool is_static;
  float* scales;   // [rows], static: [1]
  int32_t* zeros;  // the same, or null: symmetric
  int8_t* codes;
};

// x [rows, size] as e4m3 codes [rows, size] of x / scale, the scale of element (r, i) being
// scales[r / row_group * scale_row_stride + i / column_group * scale_column_stride].
struct Fp8RowsArgs {
  ConstData x;
  int64_t x_stride, size;
  const float* scales;
  int64_t row_group, column_group;
  int64_t scale_row_stride, scale_column_stride;
  uint8_t* codes;
};

// The caller's int8 codes in the place of the integers above.
struct QuantGivenArgs {
  QuantLayout layout;
  const int8_t* codes;  // [m, k]
  int64_t codes_stride;
  const float* scales;  // [m] or, with scale_stride 0, one
  int64_t scale_stride;
  QuantRows rows;
};

}  // namespace cpu_backend

#undef CPU_BACKEND_MEMBER
