// 4-bit codes expanded into the packed form of 8-bit ones: those that stand for others, and, for
// matrix tiles, which know bytes only, all.
//
// ZeroKind::kLevels   code8 = step * code + base, whole numbers for every 32 channels and column:
//                     four codes of a word, a byte each, are multiplied by a step at once.  No
//                     product carries into the next byte, because all of them and their bases end
//                     below 256.  (Two-level scales as in the K-quants of llama.cpp's GGUF, but
//                     whole numbers all through, so that no group of 32 needs arithmetic in fp32.)
// CodeKind::kTable    code8 = table[code].  So are numbers without a rule: e2m1 (OCP Microscaling
//                     Formats 1.0; twice the numbers are whole), the IQ types of GGUF.
//
// A product of one tile of rows expands a group at a time, which stays in L1, one of several tiles
// a panel at a time: all rows then meet 8-bit codes, and both ways give the same numbers.  Up to
// QuantLayout::kFewRows rows meet codes that are not expanded, but read so in registers
// (kernels/quant_tile.h).
#pragma once

#include "core/quant.h"
#include "isa/dot.h"
#include "kernels/quant_pack.h"

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

// Bytes of one panel's 8-bit codes for so many channels.
constexpr int64_t expanded_bytes(int64_t channels) {
  return ceil_div(channels, QuantLayout::kStep) * 4 * step_words(8) * kPanelWidth;
}

// The codes of one panel and group after its scales; returns where the panel goes on.
static inline const char* expand_table(const QuantLayout& layout, const char* from,
                                       int64_t channels, char* to) {
  const ByteTable table(layout.table);
  for (int64_t i = 0; i < channels; i += QuantLayout::kStep) {
    fetch_ahead(from, 4 * kPanelWidth);
    for (int v = 0; v < kPanelVecs; ++v) {
      const VecU word = load_raw<VecU>(from + 4 * v * kLanes);
      store_raw(to + 4 * v * kLanes, table[word & 0x0f0f0f0fu]);
      store_raw(to + 4 * (kPanelWidth + v * kLanes), table[shift_halves(word, 4) & 0x0f0f0f0fu]);
    }
    from += 4 * kPanelWidth;
    to += 8 * kPanelWidth;
  }
  return from;
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
        const VecHalves high = (VecHalves)(shift_halves(word, 4) & 0x0f0f0f0fu);
        store_raw(to + 4 * v * kLanes, (VecU)(low * step[v]) + base[v]);
        store_raw(to + 4 * (kPanelWidth + v * kLanes), (VecU)(high * step[v]) + base[v]);
      }
      from += 4 * kPanelWidth;
      to += 8 * kPanelWidth;
    }
  }
  return from;
}

// Codes that stand for themselves.
static inline const char* expand_nibbles(const char* from, int64_t channels, char* to) {
  for (int64_t i = 0; i < channels; i += QuantLayout::kStep) {
    fetch_ahead(from, 4 * kPanelWidth);
    for (int v = 0; v < kPanelVecs; ++v) {
      const VecU word = load_raw<VecU>(from + 4 * v * kLanes);
      store_raw(to + 4 * v * kLanes, word & 0x0f0f0f0fu);
      store_raw(to + 4 * (kPanelWidth + v * kLanes), shift_halves(word, 4) & 0x0f0f0f0fu);
    }
    from += 4 * kPanelWidth;
    to += 8 * kPanelWidth;
  }
  return from;
}

static inline const char* expand_group(const QuantLayout& layout, const char* from,
                                       int64_t channels, char* to) {
  if (layout.kind == CodeKind::kTable) return expand_table(layout, from, channels, to);
  if (kHasTiles && !layout.expands()) return expand_nibbles(from, channels, to);
  return expand_levels(from, channels, to);
}

// A whole panel.
static inline int64_t expanded_panel_bytes(const QuantLayout& layout) {
  QuantLayout expanded = layout.expanded();
  expanded.bits = 8;
  return panel_bytes(expanded);
}
static inline void expand_panel(const QuantLayout& layout, const char* from, char* to) {
  const int64_t head = group_head_bytes(layout);
  for (int64_t begin = 0; begin < layout.k; begin += layout.group) {
    const int64_t channels = layout.k - begin < layout.group ? layout.k - begin : layout.group;
    __builtin_memcpy(to, from, static_cast<size_t>(head));
    from = expand_group(layout, from + head, channels, to + head);
    to += head + expanded_bytes(channels);
  }
}

}  // namespace CPU_BACKEND_NAMESPACE
