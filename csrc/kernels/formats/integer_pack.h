// Quantized weights: the one form in which every integer scheme is kept.
//
// A weight [n, k] is n columns of k codes of 2, 3, 4 or 8 bits, unsigned, with a scale per group of
// channels and column, and a zero where the scheme has one (core/quant.h: ZeroKind).  AWQ, GPTQ,
// compressed-tensors and GGUF's blocks all convert into it at load, without loss: 5 to 7 bits
// become 8, int8 is shifted by 128.
//
// Panel    kPanelWidth columns; columns past n have scale 0; of two parts, panels of each in turn
//          (kernels/epilogue.h).  Per group, in this order:
//            scales [kPanelWidth] of scale_type
//            zeros  [kPanelWidth] of scale_type, with kPoint and kOffset
//            codes  [steps][step_bytes], a step being 8 channels of all columns; kLevels: before
//            every
//                   kLevelChannels channels their levels, uint16 [kPanelWidth]
//          so that one row of activations reads one contiguous range of memory.  After the last
//          panel kReadPast zeros.
// Step     4 bits: one 32-bit word per column, 8 bits: two, of channels 0-3 and 4-7.  Channels 0 to
//          3 of a word lie in its bytes so that channels (0, 1) and (2, 3) are 16 bits apart, the
//          first where the machine's byte order has the first of two neighbouring int16: masked, a
//          word is a vector of such pairs, unmasked, one of quads (isa/dot.h).  With 4 bits the
//          low nibbles are channels 0-3, the high ones 4-7.
//          2 bits: two bytes per column, of the even channels and of the odd ones, lowest first.
//          3 bits: the same with 12 bits instead of 8, whose upper four come after the bytes of all
//          columns: two bytes with those of column c low and of column kLanes + c high.
//          fp8: numbers of a panel (kernels/tiles/panel.h), no words.
// Order    act-order weights are packed sorted by group: `channels` says which channel of the
//          activations each k is, and the same list serves to read the activations
//          (kernels/quant_rows.h).  -1 fills up groups of unequal size.
// Threads  none: panels given by the caller.
#pragma once

#include "core/quant.h"
#include "kernels/tiles/panel.h"

namespace CPU_BACKEND_NAMESPACE {

// The byte of a word that holds channel c of its four.
constexpr int byte_of_channel(int c) {
  return kFirstIsLow ? (c & 1) * 2 + (c >> 1) : (1 - (c & 1)) * 2 + (c >> 1);
}

// Within a step of 8 channels: the word of channel c, and where in it the code begins.
constexpr int code_word(int bits, int c) { return bits == 8 ? c / 4 : 0; }
constexpr int code_shift(int bits, int c) {
  return 8 * byte_of_channel(c & 3) + (bits == 4 ? c / 4 * 4 : 0);
}
constexpr int64_t step_bytes(int bits) { return bits * kPanelWidth; }

// Steps that a matrix tile takes at a time, at most: its words are quads.
constexpr int64_t kMatrixSteps = 8;

static inline int64_t scale_bytes(const QuantLayout& layout) {
  const int64_t one = layout.scale_type == DType::kFloat32 ? 4 : 2;
  return kPanelWidth * one;
}
// Bytes of one panel before the codes of a group.
static inline int64_t group_head_bytes(const QuantLayout& layout) {
  const bool zeros = layout.zero == ZeroKind::kPoint || layout.zero == ZeroKind::kOffset;
  return scale_bytes(layout) * (zeros ? 2 : 1);
}
constexpr int64_t kLevelsBytes = 2 * kPanelWidth;
static inline int64_t panel_bytes(const QuantLayout& layout) {
  const int64_t levels =
      layout.zero == ZeroKind::kLevels ? ceil_div(layout.k, QuantLayout::kLevelChannels) : 0;
  return layout.groups() * group_head_bytes(layout) + layout.steps() * step_bytes(layout.bits) +
         levels * kLevelsBytes;
}
// Matrix tiles read whole parts of a segment, of which the last may end after the weight: what they
// read too much meets activations of zero.
constexpr int64_t kReadPast = kHasTiles ? (kMatrixSteps - 1) * step_bytes(8) : 0;
static inline int64_t quant_packed_bytes(const QuantLayout& layout) {
  return panel_count(layout.n, layout.parts) * panel_bytes(layout) + kReadPast;
}

// A group's row of scales or zeros, one vector of it, in fp32.
CPU_BACKEND_INLINE Vec load_scale(DType type, const char* row, int v) {
  switch (type) {
    case DType::kBFloat16:
      return load(reinterpret_cast<const bf16_t*>(row) + v * kLanes);
    case DType::kFloat16:
      return load(reinterpret_cast<const fp16_t*>(row) + v * kLanes);
    case DType::kFloat32:
      break;
  }
  return load(reinterpret_cast<const float*>(row) + v * kLanes);
}

// Code (column, channel) of the source, before `add`.  kBits is args.source_bits, or 0: any.
template <CodeOrder kOrder, int kBits>
CPU_BACKEND_INLINE uint32_t source_code(const QuantPackArgs& args, int64_t column,
                                        int64_t channel) {
  if constexpr (kOrder == CodeOrder::kBytes) {
    const uint8_t* bytes = static_cast<const uint8_t*>(args.codes);
    return bytes[column * args.n_stride + channel * args.k_stride];
  }
  if constexpr (kOrder == CodeOrder::kPairsOfK) {
    const uint8_t* bytes = static_cast<const uint8_t*>(args.codes);
    const uint8_t pair = bytes[column * args.n_stride + channel / 2 * args.k_stride];
    return channel % 2 ? pair >> 4 : pair & 15u;
  }
  const uint32_t* words = static_cast<const uint32_t*>(args.codes);
  constexpr bool kAlongK = kOrder == CodeOrder::kWordsOfK;
  const int bits = kBits ? kBits : args.source_bits;
  int64_t place = kAlongK ? channel : column;
  if constexpr (kOrder == CodeOrder::kWordsOfNAwq)
    place = (place & ~int64_t{7}) + (place & 1) * 4 + (place & 7) / 2;
  words += kAlongK ? column * args.n_stride : channel * args.k_stride;
  const int64_t stride = kAlongK ? args.k_stride : args.n_stride;
  const int64_t bit = place * bits;
  const int inside = static_cast<int>(bit & 31);
  uint32_t code = words[(bit >> 5) * stride] >> inside;
  if (inside + bits > 32) code |= words[((bit >> 5) + 1) * stride] << (32 - inside);
  return code & ((1u << bits) - 1u);
}

// Copies one group's scales or zeros of a panel; columns past n get 0.
template <class T>
CPU_BACKEND_INLINE void copy_row(const T* source, int64_t stride, int64_t columns, T* packed) {
  for (int64_t c = 0; c < kPanelWidth; ++c) packed[c] = c < columns ? source[c * stride] : T{};
}
// They are only moved, so their size is all that matters.
CPU_BACKEND_INLINE void pack_row(DType type, ConstData source, int64_t offset, int64_t stride,
                                 int64_t columns, char* packed) {
  if (type == DType::kFloat32) {
    copy_row(static_cast<const uint32_t*>(source) + offset, stride, columns,
             reinterpret_cast<uint32_t*>(packed));
  } else {
    copy_row(static_cast<const uint16_t*>(source) + offset, stride, columns,
             reinterpret_cast<uint16_t*>(packed));
  }
}

// Channels [k, k + 8) before `end`; the bytes of the others are zero.
static inline void pack_fp8_step(const QuantPackArgs& args, int64_t column, int64_t columns,
                                 int64_t k, int64_t end, char* at) {
  for (int64_t i = 0; i < QuantLayout::kStep && k + i < end; ++i) {
    const int64_t channel = args.channels ? args.channels[k + i] : k + i;
    if (channel < 0) continue;
    for (int64_t c = 0; c < columns; ++c)
      at[panel_offset<fp8_t>(i, c, kPanelWidth)] =
          static_cast<char>(source_code<CodeOrder::kBytes, 0>(args, column + c, channel));
  }
}

// Codes of 2 bits, or 3, of column c of a panel; columns come in their order.
CPU_BACKEND_INLINE void store_narrow_codes(int bits, const uint32_t (&code)[QuantLayout::kStep],
                                           int64_t c, char* step) {
  for (int odd = 0; odd < 2; ++odd) {
    uint32_t half = 0;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) half |= code[2 * i + odd] << (bits * i);
    step[2 * c + odd] = static_cast<char>(half);
    if (bits == 3) {
      char& both = step[2 * kPanelWidth + 2 * (c % kLanes) + odd];
      both = static_cast<char>(c < kLanes ? half >> 8 : (both & 15u) | half >> 8 << 4);
    }
  }
}

// Channels [k, k + 8) before `end` of integer codes; those of columns past the weight's are zero.
// A column at a time, whose codes lie side by side in most orders.  kBits is layout.bits, or 0: 2
// or 3.
template <CodeOrder kOrder, int kSourceBits, int kBits>
CPU_BACKEND_INLINE void pack_step(const QuantPackArgs& args, Slice columns, int64_t k, int64_t end,
                                  char* step) {
  const uint32_t mask = (1u << args.layout.bits) - 1u;
  const bool whole = k + QuantLayout::kStep <= end && !args.channels;
  for (int64_t c = 0; c < kPanelWidth; ++c) {
    const int64_t column = columns.begin + c;
    uint32_t code[QuantLayout::kStep] = {};
    const auto add = [&](int i, int64_t channel) CPU_BACKEND_LAMBDA {
      code[i] = (source_code<kOrder, kSourceBits>(args, column, channel) + args.add) & mask;
    };
    if (column >= columns.end) {
    } else if (whole) {
#pragma GCC unroll 8
      for (int i = 0; i < QuantLayout::kStep; ++i) add(i, k + i);
    } else {
      for (int i = 0; i < QuantLayout::kStep && k + i < end; ++i) {
        const int64_t channel = args.channels ? args.channels[k + i] : k + i;
        if (channel >= 0) add(i, channel);
      }
    }
    if constexpr (kBits == 0) {
      store_narrow_codes(args.layout.bits, code, c, step);
    } else {
      uint32_t word[2] = {};
#pragma GCC unroll 8
      for (int i = 0; i < QuantLayout::kStep; ++i)
        word[code_word(kBits, i)] |= code[i] << code_shift(kBits, i);
      for (int64_t w = 0; w < kBits / 4; ++w) store_raw(step + 4 * (w * kPanelWidth + c), word[w]);
    }
  }
}

template <CodeOrder kOrder, int kBits>
void pack_quant_panel(const QuantPackArgs& args, int64_t panel) {
  const QuantLayout& layout = args.layout;
  const Slice own = panel_columns(layout.n, layout.parts, panel);
  const int64_t column = own.begin;
  const int64_t columns = own.end - own.begin;
  char* at = static_cast<char*>(args.packed) + panel * panel_bytes(layout);
  for (int64_t g = 0; g < layout.groups(); ++g) {
    pack_row(layout.scale_type, args.scales,
             g * args.scale_group_stride + column * args.scale_n_stride, args.scale_n_stride,
             columns, at);
    if (layout.zero == ZeroKind::kPoint || layout.zero == ZeroKind::kOffset) {
      pack_row(layout.scale_type, args.zeros,
               g * args.zero_group_stride + column * args.zero_n_stride, args.zero_n_stride,
               columns, at + scale_bytes(layout));
    }
    at += group_head_bytes(layout);
    const int64_t begin = g * layout.group;
    const int64_t end = begin + layout.group < layout.k ? begin + layout.group : layout.k;
    for (int64_t k = begin; k < end; k += QuantLayout::kStep, at += step_bytes(layout.bits)) {
      if (layout.zero == ZeroKind::kLevels && k % QuantLayout::kLevelChannels == 0) {
        const int64_t row = k / QuantLayout::kLevelChannels * args.zero_group_stride;
        copy_row(static_cast<const uint16_t*>(args.zeros) + row + column * args.zero_n_stride,
                 args.zero_n_stride, columns, reinterpret_cast<uint16_t*>(at));
        at += kLevelsBytes;
      }
      if (layout.kind == CodeKind::kFp8) {
        __builtin_memset(at, 0, static_cast<size_t>(step_bytes(8)));
        pack_fp8_step(args, column, columns, k, end, at);
      } else if (layout.bits == 8) {
        pack_step<kOrder, kBits, 8>(args, own, k, end, at);
      } else if (kBits != 0 || layout.bits == 4) {
        pack_step<kOrder, kBits, 4>(args, own, k, end, at);
      } else if constexpr (kBits == 0) {
        pack_step<kOrder, 0, 0>(args, own, k, end, at);
      }
    }
  }
  if (panel + 1 == panel_count(layout.n, layout.parts)) __builtin_memset(at, 0, kReadPast);
}

template <CodeOrder kOrder, int kBits>
void pack_quant_panels(const QuantPackArgs& args, Slice panels) {
  for (int64_t p = panels.begin; p < panels.end; ++p) pack_quant_panel<kOrder, kBits>(args, p);
}

// Codes of any width in words; those of 4 and 8 bits, which never straddle two, are the common
// ones: a constant width packs them 1.2 to 2 times as fast.
template <CodeOrder kOrder>
void pack_words(const QuantPackArgs& args, Slice panels) {
  if (args.source_bits == 4) return pack_quant_panels<kOrder, 4>(args, panels);
  if (args.source_bits == 8) return pack_quant_panels<kOrder, 8>(args, panels);
  pack_quant_panels<kOrder, 0>(args, panels);
}

static inline void pack_quant(const QuantPackArgs& args, Slice panels) {
  switch (args.order) {
    case CodeOrder::kBytes:
      return pack_quant_panels<CodeOrder::kBytes, 0>(args, panels);
    case CodeOrder::kPairsOfK:
      return pack_quant_panels<CodeOrder::kPairsOfK, 4>(args, panels);
    case CodeOrder::kWordsOfK:
      return pack_words<CodeOrder::kWordsOfK>(args, panels);
    case CodeOrder::kWordsOfN:
      return pack_words<CodeOrder::kWordsOfN>(args, panels);
    case CodeOrder::kWordsOfNAwq:
      return pack_quant_panels<CodeOrder::kWordsOfNAwq, 4>(args, panels);
  }
}

}  // namespace CPU_BACKEND_NAMESPACE
