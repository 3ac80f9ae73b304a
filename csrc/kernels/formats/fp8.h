// Weights of fp8 codes (e4m3) with a scale for every group of channels and column, beside
// activations that stay as they are, also where the checkpoint was made for fp8 ones.
//
//   c[m][n] = sum over the chains of every group of scale[g][n] * sum of a[m][k] * code[n][k]
//
// Packed    kernels/formats/integer_pack.h.
// Numerics  codes are exact in fp32 and bf16; a chain of at most kChainLength multiply-adds begins
//           with its group, and is scaled and added in fp32 in the order of k.  In matrix tiles a
//           group is one chain.
// Product   where the target multiplies pairs of bf16, rows of bf16 meet codes as such.  A few rows
//           decode them in registers; more rows, and all in tiles, share what is decoded into L1:
//           with 32 registers a chain while the first of them meet the one before, which lost with
//           16.
#pragma once

#include "core/quant.h"
#include "core/view.h"
#include "kernels/formats/integer_pack.h"
#include "kernels/gemm_rows.h"

namespace CPU_BACKEND_NAMESPACE {

// Channels of a panel that are decoded, and the room that they and, in tiles, products of a group
// take: two chains, or what tiles take at a time.
#if defined(CPU_BACKEND_TILES)
constexpr int64_t kDecodedChannels = kDepthInL1;
constexpr int64_t kGroupFloats = kMostTileItemRows * kPanelWidth;
#else
constexpr int64_t kDecodedChannels = 2 * kChainLength;
constexpr int64_t kGroupFloats = 0;
#endif
static_assert(kDecodedChannels >= 2 * kChainLength, "also where groups do not fit tiles");
constexpr int64_t kDecodedPanelFloats = kDecodedChannels * kPanelWidth;

// Whole words of codes as a panel of the type in which rows meet them.
#if defined(CPU_BACKEND_BF16_PAIRS)
static inline void decode_panel(const fp8_t* codes, int64_t depth, bf16_t* to) {
  static_assert(kPairing<fp8_t> == 2 && kPairing<bf16_t> == 2, "elements lie alike");
  for (int64_t i = 0; i < round_up(depth, 2) * kPanelWidth; i += kPanelVecs * 2 * kLanes) {
    VecU words[kPanelVecs];
    load_bf16_pairs(codes + i, words);
    for (int v = 0; v < kPanelVecs; ++v) store_raw(to + i + v * 2 * kLanes, words[v]);
  }
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

// Decodes `left` channels while a tile is multiplied, as many at a time as that takes of its own.
template <class To>
struct DecodeAhead {
  const fp8_t* from;
  To* to;
  int64_t left;
  int64_t rate = 1;

  CPU_BACKEND_INLINE void fetch_all(int64_t channels) {
    constexpr int64_t kDistance = 4096;
    const int64_t now = channels < left ? channels : left;
    for (int64_t line = 0; line < now * kPanelWidth; line += Ahead::kLine)
      __builtin_prefetch(from + kDistance + line, 0, 3);
    decode_panel(from, now, to);
    from += now * kPanelWidth;
    to += now * kPanelWidth;
    left -= now;
  }
};

template <class T>
class Fp8Weight : public MeetsFloats<T> {
 public:
  static constexpr int64_t kScratchFloats = kActivationFloats + kDecodedPanelFloats + kGroupFloats;

  explicit Fp8Weight(const GemmArgs& args)
      : MeetsFloats<T>(args.k, true),
        layout_(*args.codes),
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

  // As PlainWeight has it; scratch of kScratchFloats, whose first kActivationFloats are the rows'.
  template <class Done>
  void multiply(const TakenRows<T>& rows, Slice panels, float* c, bool, float* scratch,
                Done done) const {
    scratch += kActivationFloats;
    const char* const panel = packed_ + panels.begin * bytes_;
    const int64_t end = rows.k + rows.depth, count = panels.end - panels.begin;
    if (rows.k == 0)
      for (int64_t i = 0; i < count * rows.count * kPanelWidth; i += kLanes) store(c + i, Vec{});
    if (rows.count > kFewRows && !takes_tiles()) {
      multiply_chains(rows, panel, count, c, scratch);
      return done(0, rows.count);
    }
    for (int64_t k = rows.k, depth; k < end; k += depth) {
      depth = group_end(k, end) - k;
      const GroupPart part{rows.a + (k - rows.k), rows.a_stride, rows.count, group_at(panel, k),
                           k % layout_.group,     depth,         count,      c};
      if (takes_tiles()) {
        multiply_tiles(part, scratch);
      } else {
        multiply_in_registers(part);
      }
    }
    done(0, rows.count);
  }

 private:
  // Tiles take whole multiples of their depth of a row.
  bool takes_tiles() const {
#if defined(CPU_BACKEND_TILES)
    return kInTiles<T> && (layout_.group % kTileDepth == 0 || layout_.groups() == 1);
#else
    return false;
#endif
  }

  // The scales of the group that channel k belongs to, then its codes.
  const char* group_at(const char* panel, int64_t k) const {
    return panel + k / layout_.group * group_bytes_;
  }
  int64_t group_end(int64_t k, int64_t end) const {
    const int64_t group_end = (k / layout_.group + 1) * layout_.group;
    return group_end < end ? group_end : end;
  }
  const fp8_t* codes(const char* group, int64_t channel) const {
    return reinterpret_cast<const fp8_t*>(group + group_head_bytes(layout_)) +
           channel * kPanelWidth;
  }
  // Of some panels.
  ColumnScales scales(const char* group, int64_t panels) const {
    ColumnScales scales;
    for (int64_t p = 0; p < panels; ++p)
      for (int v = 0; v < kPanelVecs; ++v)
        scales.of[p][v] = load_scale(layout_.scale_type, group + p * bytes_, v) * kUnit<fp8_t>;
    return scales;
  }

  // Channels of a group, of some panels.
  struct GroupPart {
    const Left<T>* a;
    int64_t a_stride, rows;
    const char* group;
    int64_t first, depth;  // channels of the group
    int64_t panels;
    float* c;
  };

  void multiply_in_registers(const GroupPart& part) const {
    // More panels side by side gained nothing: decoding has enough of its own to do meanwhile.
    constexpr int64_t kMost = ColumnScales::kPanels;
    const int64_t step = panels_at_once(part.rows) < kMost ? 1 : kMost;
    for (int64_t p = 0; p < part.panels; p += step) {
      const int64_t now = part.panels - p < step ? part.panels - p : step;
      const char* const group = part.group + p * bytes_;
      const ColumnScales columns = scales(group, now);
      with_few_rows<kMost>(part.rows, now, [&](auto few, auto together) CPU_BACKEND_LAMBDA {
        constexpr int kRows = decltype(few)::value, kPanels = decltype(together)::value;
        Ahead none{};
        multiply_tile<Fetch::kInBursts, Left<T>, fp8_t, kRows, kPanelVecs, kPanels>(
            part.a, part.a_stride, codes(group, part.first), kPanelWidth, bytes_, part.depth,
            part.c + p * kRows * kPanelWidth, kPanelWidth, kRows * kPanelWidth, true, none,
            columns);
      });
    }
  }

  struct Chain {
    const char* group;
    const fp8_t* codes;
    int64_t depth;
  };
  Chain chain_at(const char* panel, int64_t k, int64_t end) const {
    const char* const group = group_at(panel, k);
    const int64_t left = group_end(k, end) - k;
    return {group, codes(group, k % layout_.group), left < kChainLength ? left : kChainLength};
  }

  void multiply_chains(const TakenRows<T>& rows, const char* panel, int64_t panels, float* c,
                       float* scratch) const {
    const int64_t end = rows.k + rows.depth;
    Left<T>* decoded = reinterpret_cast<Left<T>*>(scratch);
    Left<T>* other = decoded + kChainLength * kPanelWidth;
    Chain now = chain_at(panel, rows.k, end);
    decode_panel(now.codes, now.depth, decoded);
    for (int64_t p = 0; p < panels; ++p, panel += bytes_, c += rows.count * kPanelWidth)
      for (int64_t k = rows.k; k < end;) {
        const Left<T>* const a = rows.a + (k - rows.k);
        k += now.depth;
        Chain next{};
        if (k < end) {
          next = chain_at(panel, k, end);
        } else if (p + 1 < panels) {
          next = chain_at(panel + bytes_, rows.k, end);
        }
        const ColumnScales columns = scales(now.group, 1);
        const auto multiply = [&](auto& meanwhile) CPU_BACKEND_LAMBDA {
          for_each_tile<Left<T>>(rows.count, [&](int64_t row, int64_t count) CPU_BACKEND_LAMBDA {
            constexpr int kLeast = kFewRows - 1;  // where rows go in pairs
            multiply_rows<Fetch::kInBursts, kPanelVecs, kMaxRows, kLeast>(
                count, a + row * rows.a_stride, rows.a_stride, decoded, kPanelWidth, now.depth,
                c + row * kPanelWidth, kPanelWidth, true, meanwhile, columns);
          });
        };
        if constexpr (kMaxRows == 12) {
          DecodeAhead<Left<T>> ahead{next.codes, other, next.depth};
          multiply(ahead);
          ahead.fetch_all(ahead.left);
        } else {
          Ahead ahead = next_panel(next.codes, rows.count);
          multiply(ahead);
          decode_panel(next.codes, next.depth, other);
        }
        Left<T>* const free = decoded;
        decoded = other;
        other = free;
        now = next;
      }
  }

  void multiply_tiles([[maybe_unused]] const GroupPart& part,
                      [[maybe_unused]] float* scratch) const {
#if defined(CPU_BACKEND_TILES)
    if constexpr (kInTiles<T>) {
      bf16_t* const decoded = reinterpret_cast<bf16_t*>(scratch);
      float* const products = scratch + kDecodedPanelFloats;
      for (int64_t p = 0; p < part.panels; ++p) {
        for (int64_t k = 0; k < part.depth; k += kDecodedChannels) {
          const int64_t steps =
              part.depth - k < kDecodedChannels ? part.depth - k : kDecodedChannels;
          const int64_t padded = round_up(steps, kTileDepth);
          const fp8_t* const from = codes(part.group + p * bytes_, part.first + k);
          decode_panel(from, steps, decoded);
          for (int64_t i = round_up(steps, 2) * kPanelWidth; i < padded * kPanelWidth; ++i)
            decoded[i] = bf16_t{};
          const fp8_t* const next = from + steps * kPanelWidth;
          multiply_in_tiles(part.rows, part.a + k, part.a_stride, decoded, padded, products, k > 0,
                            reinterpret_cast<const bf16_t*>(next));
        }
        const ColumnScales columns = scales(part.group + p * bytes_, 1);
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
  }

  const QuantLayout& layout_;
  const char* packed_;
  int64_t bytes_, group_bytes_;  // of a panel; of a whole group in it
};

}  // namespace CPU_BACKEND_NAMESPACE
