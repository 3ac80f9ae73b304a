// Codes that many rows meet expanded, because unpacking them once costs less than for every tile of
// rows: into the packed form of 8-bit codes those that stand for such, and for matrix tiles, which
// know bytes only, all; into that of 4-bit codes the others of 2 and 3 bits.
//
// ZeroKind::kLevels   code8 = step * code + base, whole numbers for every 32 channels and column:
//                     four codes of a word, a byte each, are multiplied by a step at once.  No
//                     product carries into the next byte, because all of them and their bases end
//                     below 256.  (Two-level scales as in the K-quants of llama.cpp's GGUF, but
//                     whole numbers all through, so that no group of 32 needs arithmetic in fp32.)
// CodeKind::kTable    code8 = table[code].  So are numbers without a rule: e2m1 (OCP Microscaling
//                     Formats 1.0; twice the numbers are whole), the IQ types of GGUF.
// others              code + the distance of the middles, where that is the zero.
//
// A product of one tile of rows expands into bytes a group at a time, which stays in L1, one of
// several tiles a panel at a time, as all expand into 4 bits: all rows then meet the same codes,
// and both ways give the same numbers.  Up to QuantLayout::kFewRows rows meet codes that are not
// expanded, but read so in registers (kernels/tiles/integer_registers.h).
#pragma once

#include "core/quant.h"
#include "isa/dot.h"
#include "kernels/formats/integer_pack.h"

namespace CPU_BACKEND_NAMESPACE {

typedef uint16_t VecHalves __attribute__((vector_size(kVectorBytes)));

// Shifts both halves of each lane.
CPU_BACKEND_INLINE VecU shift_halves(VecU x, int bits) { return (VecU)((VecHalves)x >> bits); }

// Asks for lines that are read in a while, where memory is what a loop waits for.
CPU_BACKEND_INLINE void fetch_ahead(const char* from, int64_t bytes) {
  constexpr int64_t kDistance = 2048;
  for (int64_t line = 0; line < bytes; line += 64)
    __builtin_prefetch(from + kDistance + line, 0, 3);
}

// The even channels of a step in one half of each lane of vector v, the odd ones in the other, as
// kernels/formats/integer_pack.h has them; with 3 bits the uppermost four bits are any.
template <int kBits>
CPU_BACKEND_INLINE VecU load_halves(const char* step, int v) {
  if constexpr (kBits == 4) return load_raw<VecU>(step + v * kVectorBytes);
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(step);
  const VecU lower = load_pairs(bytes + v * (kVectorBytes / 2));
  if constexpr (kBits == 2) return lower;
  static_assert(kPanelVecs == 2, "a byte has the upper bits of columns of two vectors");
  const VecU upper = load_pairs(bytes + 2 * kPanelWidth);
  return lower | (v == 0 ? upper << 8 : upper << 4 & 0x0f000f00u);
}

// The first or second four channels of a step, a byte each.
template <int kBits>
CPU_BACKEND_INLINE VecU quads_of_halves(VecU halves, int second) {
  constexpr uint32_t kCode = (1u << kBits) - 1u;
  if constexpr (kBits == 3) {
    const VecU even = second ? shift_halves(halves, 6) : halves;
    const VecU odd = second ? halves >> 1 : halves << 5;
    return (even & kCode * 0x00010001u) | (odd & kCode * 0x01000100u);
  } else if (kBits == 4 && second) {
    return upper_nibbles(halves);
  } else {
    const VecU word = kBits == 2 ? halves | halves << 6 : halves;
    return (second ? shift_halves(word, 4) : word) & kCode * 0x01010101u;
  }
}

static inline const char* expand_levels(const char* from, int64_t channels, char* to) {
  for (int64_t k = 0; k < channels; k += QuantLayout::kLevelChannels) {
    VecHalves step[kPanelVecs];
    VecU base[kPanelVecs];
    for (int v = 0; v < kPanelVecs; ++v) {
      const VecU level = widen_bits(load_raw<VecH>(from + 2 * v * kLanes));
      step[v] = (VecHalves)((level & 0xffu) * 0x00010001u);
      base[v] = (level >> 8) * 0x01010101u;
    }
    from += kLevelsBytes;
    const int64_t piece =
        channels - k < QuantLayout::kLevelChannels ? channels - k : QuantLayout::kLevelChannels;
    for (int64_t i = 0; i < piece; i += QuantLayout::kStep) {
      fetch_ahead(from, 4 * kPanelWidth);
      for (int v = 0; v < kPanelVecs; ++v) {
        const VecU word = load_raw<VecU>(from + 4 * v * kLanes);
        const VecHalves low = (VecHalves)(word & 0x0f0f0f0fu);
        const VecHalves high = (VecHalves)upper_nibbles(word);
        store_raw(to + 4 * v * kLanes, (VecU)(low * step[v]) + base[v]);
        store_raw(to + 4 * (kPanelWidth + v * kLanes), (VecU)(high * step[v]) + base[v]);
      }
      from += 4 * kPanelWidth;
      to += 8 * kPanelWidth;
    }
  }
  return from;
}

// What the codes of a packed weight become for the rows that meet them.
class Expansion {
 public:
  // rows: the layout that the rows were quantized for.
  Expansion(const QuantLayout& packed, const QuantLayout& rows)
      : packed_(packed),
        add_(rows.zero == ZeroKind::kMiddle ? static_cast<uint32_t>(rows.middle() - packed.middle())
                                            : 0) {
    for (uint32_t q = 0; q < 16; ++q)
      table_[q] =
          packed.kind == CodeKind::kTable ? packed.table[q] : static_cast<uint8_t>(q + add_);
  }

  // The codes of one panel and group after its scales, as those of kTo bits; returns where the
  // panel goes on.
  template <int kTo>
  CPU_BACKEND_NOINLINE const char* group(const char* from, int64_t channels, char* to) const {
    if (packed_.bits == 2) return expand<2, kTo>(from, channels, to);
    if (packed_.bits == 3) return expand<3, kTo>(from, channels, to);
    if constexpr (kTo == 8) {
      if (packed_.zero == ZeroKind::kLevels) return expand_levels(from, channels, to);
      return expand<4, kTo>(from, channels, to);
    }
    return from;  // there is nothing to expand
  }
  template <int kTo>
  void panel(const char* from, char* to) const {
    const int64_t head = group_head_bytes(packed_);
    for (int64_t begin = 0; begin < packed_.k; begin += packed_.group) {
      const int64_t left = packed_.k - begin;
      const int64_t channels = left < packed_.group ? left : packed_.group;
      __builtin_memcpy(to, from, static_cast<size_t>(head));
      from = group<kTo>(from + head, channels, to + head);
      to += head + ceil_div(channels, QuantLayout::kStep) * step_bytes(kTo);
    }
  }

 private:
  template <int kBits, int kTo>
  CPU_BACKEND_INLINE const char* expand(const char* from, int64_t channels, char* to) const {
    const ByteTable table(table_);
    const VecU add = VecU{} + add_ * 0x11111111u;
    for (int64_t i = 0; i < channels; i += QuantLayout::kStep) {
      fetch_ahead(from, step_bytes(kBits));
      for (int v = 0; v < kPanelVecs; ++v) {
        const VecU halves = load_halves<kBits>(from, v);
        const VecU first = quads_of_halves<kBits>(halves, 0);
        const VecU second = quads_of_halves<kBits>(halves, 1);
        if constexpr (kTo == 8) {
          store_raw(to + v * kVectorBytes, table[first]);
          store_raw(to + 4 * kPanelWidth + v * kVectorBytes, table[second]);
        } else {
          store_raw(to + v * kVectorBytes, (first | second << 4) + add);
        }
      }
      from += step_bytes(kBits);
      to += step_bytes(kTo);
    }
    return from;
  }

  const QuantLayout& packed_;
  uint32_t add_;
  uint8_t table_[16];
};

// At most so many bytes a panel becomes.
static inline int64_t expanded_panel_bytes(const QuantLayout& layout) {
  QuantLayout expanded = layout.expanded();
  expanded.bits = 8;
  return panel_bytes(expanded);
}

}  // namespace CPU_BACKEND_NAMESPACE
