// Weights of fp8 codes (e4m3) with a scale for every group of channels and column, beside
// activations that stay as they are, also where the checkpoint was made for fp8 ones.
//
//   c[m][n] = sum over the chains of every group of scale[g][n] * sum of a[m][k] * code[n][k]
//
// Packed    kernels/quant_pack.h.
// Numerics  codes are exact in fp32 and bf16; a chain of at most kChainLength multiply-adds begins
//           with its group, and is scaled and added in fp32 in the order of k.  In matrix tiles a
//           group is one chain.
// Product   where the target multiplies pairs of bf16, rows of bf16 meet codes as such.  A few rows
//           decode them in registers; more rows, and all in tiles, share what is decoded into L1.
#pragma once

#include "core/quant.h"
#include "core/view.h"
#include "kernels/gemm_rows.h"
#include "kernels/quant_pack.h"

namespace CPU_BACKEND_NAMESPACE {

// Channels of a panel that are decoded at a time, and the room that they and, in tiles, products of
// a group take.
#if defined(CPU_BACKEND_TILES)
constexpr int64_t kDecodedChannels = kDepthInL1;
constexpr int64_t kGroupFloats = kMostTileItemRows * kPanelWidth;
#else
constexpr int64_t kDecodedChannels = kChainLength;
constexpr int64_t kGroupFloats = 0;
#endif
constexpr int64_t kDecodedPanelFloats = kDecodedChannels * kPanelWidth;

// Whole words of codes as a panel of the type in which rows meet them.
#if defined(CPU_BACKEND_BF16_PAIRS)
static inline void decode_panel(const fp8_t* codes, int64_t depth, bf16_t* to) {
  static_assert(kPairing<fp8_t> == 2 && kPairing<bf16_t> == 2, "elements lie alike");
  for (int64_t i = 0; i < round_up(depth, 2) * kPanelWidth; i += 2 * kLanes)
    store_raw(to + i, load_bf16_pairs(codes + i));
}
#endif
static inline void decode_panel(const fp8_t* codes, int64_t depth, float* to) {
  constexpr int64_t kPair = kPairing<fp8_t>;
  // The second of a pair is the next channel, or a column of the panel's second vector.
  constexpr int64_t kSecond = kPair == 2 ? kPanelWidth : kLanes;
  for (int64_t k = 0; k < round_up(depth, kPair); k += kPair)
    for (int64_t v = 0; v < kPanelVecs; v += 2 / kPair) {
      const auto pairs = load_pairs(codes + k * kPanelWidth + v * kPair * kLanes);
      float* const first = to + k * kPanelWidth + v * kLanes;
      store(first, first_of_pair(pairs));
      store(first + kSecond, second_of_pair(pairs));
    }
}

template <class T>
class Fp8Weight {
 public:
  explicit Fp8Weight(const GemmArgs& args)
      : layout_(*args.codes),
        packed_(static_cast<const char*>(args.packed)),
        bytes_(panel_bytes(layout_)),
        group_bytes_(group_head_bytes(layout_) + layout_.group_steps() * step_bytes(8)) {}

  // Where channels that are taken together end, at most `deep` after k: with a group, or with a
  // chain of the group that k belongs to.
  int64_t part_end(int64_t k, int64_t deep) const {
    if (layout_.k - k <= deep) return layout_.k;
    const int64_t whole = (k + deep) / layout_.group * layout_.group;
    return whole > k ? whole : k + deep / kChainLength * kChainLength;
  }

  // As PlainWeight has it; scratch of kDecodedPanelFloats + kGroupFloats.
  template <class Done>
  void multiply(const TakenRows<T>& rows, Slice panels, float* c, bool, float* scratch,
                Done done) const {
    const char* const panel = packed_ + panels.begin * bytes_;
    const int64_t end = rows.k + rows.depth, count = panels.end - panels.begin;
    if (rows.k == 0)
      for (int64_t i = 0; i < count * rows.count * kPanelWidth; i += kLanes) store(c + i, Vec{});
    for (int64_t k = rows.k, depth; k < end; k += depth) {
      const int64_t in_group = k % layout_.group;
      depth = layout_.group - in_group < end - k ? layout_.group - in_group : end - k;
      const GroupPart part{rows.a + (k - rows.k),
                           rows.a_stride,
                           rows.count,
                           panel + k / layout_.group * group_bytes_,
                           in_group * kPanelWidth,
                           depth,
                           count,
                           c};
      multiply_group(part, scratch);
    }
    done(0, rows.count);
  }

 private:
  // Channels of a group, of some panels.
  struct GroupPart {
    const Left<T>* a;
    int64_t a_stride, rows;
    const char* group;  // its scales, then its codes
    int64_t first;      // of its codes
    int64_t depth, panels;
    float* c;
  };

  const fp8_t* codes(const GroupPart& part, int64_t panel) const {
    return reinterpret_cast<const fp8_t*>(part.group + panel * bytes_ + group_head_bytes(layout_)) +
           part.first;
  }
  // Of panels [panel, panel + panels).
  ColumnScales scales(const GroupPart& part, int64_t panel, int64_t panels) const {
    ColumnScales scales;
    for (int64_t p = 0; p < panels; ++p)
      for (int v = 0; v < kPanelVecs; ++v)
        scales.of[p][v] =
            load_scale(layout_.scale_type, part.group + (panel + p) * bytes_, v) * kUnit<fp8_t>;
    return scales;
  }

  void multiply_group(const GroupPart& part, float* scratch) const {
#if defined(CPU_BACKEND_TILES)
    // Tiles take whole multiples of their depth of a row.
    if constexpr (kInTiles<T>)
      if (layout_.group % kTileDepth == 0 || layout_.groups() == 1)
        return multiply_tiles(part, scratch);
#endif
    if (part.rows <= kFewRows) {
      // More panels side by side gained nothing: decoding has enough of its own to do meanwhile.
      constexpr int64_t kMost = ColumnScales::kPanels;
      const int64_t step = panels_at_once(part.rows) < kMost ? 1 : kMost;
      for (int64_t p = 0; p < part.panels; p += step) {
        const int64_t now = part.panels - p < step ? part.panels - p : step;
        const ColumnScales columns = scales(part, p, now);
        with_few_rows<kMost>(part.rows, now, [&](auto few, auto together) CPU_BACKEND_LAMBDA {
          constexpr int kRows = decltype(few)::value, kPanels = decltype(together)::value;
          Ahead none{};
          multiply_tile<Fetch::kInBursts, Left<T>, fp8_t, kRows, kPanelVecs, kPanels>(
              part.a, part.a_stride, codes(part, p), kPanelWidth, bytes_, part.depth,
              part.c + p * kRows * kPanelWidth, kPanelWidth, kRows * kPanelWidth, true, none,
              columns);
        });
      }
      return;
    }
    Left<T>* const decoded = reinterpret_cast<Left<T>*>(scratch);
    for (int64_t p = 0; p < part.panels; ++p) {
      const ColumnScales columns = scales(part, p, 1);
      float* const c = part.c + p * part.rows * kPanelWidth;
      for (int64_t k = 0; k < part.depth; k += kDecodedChannels) {
        const int64_t steps = part.depth - k < kDecodedChannels ? part.depth - k : kDecodedChannels;
        const fp8_t* const from = codes(part, p) + k * kPanelWidth;
        decode_panel(from, steps, decoded);
        Ahead ahead = next_panel(from + steps * kPanelWidth, part.rows);
        for_each_tile<Left<T>>(part.rows, [&](int64_t row, int64_t count) CPU_BACKEND_LAMBDA {
          constexpr int kLeast = kFewRows - 1;  // where rows go in pairs
          multiply_rows<Fetch::kInBursts, kPanelVecs, kMaxRows, kLeast>(
              count, part.a + row * part.a_stride + k, part.a_stride, decoded, kPanelWidth, steps,
              c + row * kPanelWidth, kPanelWidth, true, ahead, columns);
        });
      }
    }
  }

#if defined(CPU_BACKEND_TILES)
  void multiply_tiles(const GroupPart& part, float* scratch) const {
    bf16_t* const decoded = reinterpret_cast<bf16_t*>(scratch);
    float* const products = scratch + kDecodedPanelFloats;
    for (int64_t p = 0; p < part.panels; ++p) {
      for (int64_t k = 0; k < part.depth; k += kDecodedChannels) {
        const int64_t steps = part.depth - k < kDecodedChannels ? part.depth - k : kDecodedChannels;
        const int64_t padded = round_up(steps, kTileDepth);
        const fp8_t* const from = codes(part, p) + k * kPanelWidth;
        decode_panel(from, steps, decoded);
        for (int64_t i = round_up(steps, 2) * kPanelWidth; i < padded * kPanelWidth; ++i)
          decoded[i] = bf16_t{};
        const fp8_t* const next = from + steps * kPanelWidth;
        multiply_in_tiles(part.rows, part.a + k, part.a_stride, decoded, padded, products, k > 0,
                          reinterpret_cast<const bf16_t*>(next));
      }
      const ColumnScales columns = scales(part, p, 1);
      float* const c = part.c + p * part.rows * kPanelWidth;
      for (int64_t i = 0; i < part.rows * kPanelWidth; i += kPanelWidth)
        for (int v = 0; v < kPanelVecs; ++v) {
          float* const at = c + i + v * kLanes;
          const Vec chain = load(products + i + v * kLanes);
          store(at, columns.of[0][v] * chain + load(at));
        }
    }
  }
#endif

  const QuantLayout& layout_;
  const char* packed_;
  int64_t bytes_, group_bytes_;  // of a panel; of a whole group in it
};

}  // namespace CPU_BACKEND_NAMESPACE
