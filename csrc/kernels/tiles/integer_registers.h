// The register tile of quantized products: some rows by some panels, one segment at a time
// (kernels/formats/integers.h).  Codes are unpacked by mask and shift where they are used: 2
// instructions for the 32 products of a word of 8-bit codes and a row, 7 for the 64 of 4-bit ones,
// 11 for those of a table, 2 more for 2-bit codes and 7 for 3-bit ones, shared by all rows of the
// tile.
#pragma once

#include "core/quant.h"
#include "isa/blocks.h"
#include "isa/dot.h"
#include "kernels/formats/integer_expand.h"
#include "kernels/formats/integer_pack.h"
#include "kernels/quant_rows.h"

namespace CPU_BACKEND_NAMESPACE {

template <int kRows, int kPanels>
struct IntTile {
  VecI sum[kPanels][kRows][kPanelVecs];
};

// Codes of some panels that lie `stride` bytes apart, and a part of what comes after them, which is
// fetched into L2 meanwhile: `ahead_step` bytes per step.
struct TileCodes {
  const char* at;
  int64_t stride;
  const char* ahead;
  int64_t ahead_step;
  bool alone;             // the only tile of these codes, which it must wait for
  const int32_t* pieces;  // ZeroKind::kLevels: sums of the rows' activations
  const Expansion* expansion;
  char* expanded;   // where a group is expanded; null: it need not
  ByteTable table;  // CodeKind::kTable

  CPU_BACKEND_INLINE const char* step(int panel) const { return at + panel * stride; }
  CPU_BACKEND_INLINE void fetch_own(int bits, int panels) const {
    for (int p = 0; p < panels; ++p) fetch_ahead(step(p), step_bytes(bits));
  }
  CPU_BACKEND_INLINE void end_step(int bits) {
    at += step_bytes(bits);
    __builtin_prefetch(ahead, 0, 2);
    ahead += ahead_step;
  }
};

// Bytes of one row's step of activations; those of a tile's rows follow each other.
constexpr int64_t kPairsStep = 2 * QuantLayout::kStep;
constexpr int64_t kQuadsStep = QuantLayout::kStep;

// What a step holds: codes of so many bits, which may choose from a table.
enum class Form : int {};
constexpr Form form_of(int bits, bool table = false) {
  return static_cast<Form>(bits + (table ? 16 : 0));
}
constexpr int stored_bits(Form form) { return static_cast<int>(form) & 15; }
constexpr bool of_table(Form form) { return static_cast<int>(form) >= 16; }
// Bits of what meets the activations.
constexpr int met_bits(Form form) { return of_table(form) || stored_bits(form) == 8 ? 8 : 4; }

// The first or second four channels of a step in vector v of the columns, a byte each.
template <Form kForm>
CPU_BACKEND_INLINE VecU code_quads(const TileCodes& codes, const char* step, int v, int half) {
  constexpr int kBits = stored_bits(kForm);
  if constexpr (kBits == 8) {
    return load_raw<VecU>(step + (half * kPanelVecs + v) * kVectorBytes);
  } else {
    const VecU each = quads_of_halves<kBits>(load_halves<kBits>(step, v), half);
    if constexpr (of_table(kForm)) return codes.table[each];
    return each;
  }
}

// Two channels of a step, those that meet word kPart of a row's activations.
template <Form kForm, int kPart>
CPU_BACKEND_INLINE VecU code_pairs(const TileCodes& codes, const char* step, int v) {
  if constexpr (met_bits(kForm) == 8) {
    const VecU quads = code_quads<kForm>(codes, step, v, kPart / 2);
    return kPart % 2 ? shift_halves(quads, 8) : quads & 0x00ff00ffu;
  } else {
    // Where channels (0, 1), (2, 3), (4, 5) and (6, 7) begin.
    constexpr int kBits = stored_bits(kForm);
    constexpr int kNibbles[] = {0, 8, 4, 12};
    constexpr int kBegin = kBits == 4 ? kNibbles[kPart] : kBits * kPart;
    const VecU halves = load_halves<kBits>(step, v);
    if constexpr (kBits != 3 && kPart == 3) return shift_halves(halves, kBegin);
    return (kBegin ? shift_halves(halves, kBegin) : halves) & ((1u << kBits) - 1u) * 0x00010001u;
  }
}

template <Form kForm, int kPart, int kRows, int kPanels>
CPU_BACKEND_INLINE void dot_part(IntTile<kRows, kPanels>& tile, const char* a,
                                 const TileCodes& codes) {
  for (int p = 0; p < kPanels; ++p) {
    VecU pairs[kPanelVecs];
    for (int v = 0; v < kPanelVecs; ++v)
      pairs[v] = code_pairs<kForm, kPart>(codes, codes.step(p), v);
    for (int r = 0; r < kRows; ++r) {
      const VecI both = broadcast(load_raw<int32_t>(a + r * kPairsStep + 4 * kPart));
      for (int v = 0; v < kPanelVecs; ++v)
        tile.sum[p][r][v] = dot_pairs(tile.sum[p][r][v], both, (VecI)pairs[v]);
    }
  }
}

// A step of one row and codes of less than 8 bits: each word is used up while it is in a register,
// so that the sums of four panels stay in theirs.
template <Form kForm, int kPanels>
CPU_BACKEND_INLINE void dot_step_of_row(IntTile<1, kPanels>& tile, const char* a,
                                        const TileCodes& codes) {
  VecI x[4];
  for (int i = 0; i < 4; ++i) x[i] = broadcast(load_raw<int32_t>(a + 4 * i));
  for (int p = 0; p < kPanels; ++p) {
    for (int v = 0; v < kPanelVecs; ++v) {
      const char* step = codes.step(p);
      VecI& sum = tile.sum[p][0][v];
      sum = dot_pairs(sum, x[0], (VecI)code_pairs<kForm, 0>(codes, step, v));
      sum = dot_pairs(sum, x[1], (VecI)code_pairs<kForm, 1>(codes, step, v));
      sum = dot_pairs(sum, x[2], (VecI)code_pairs<kForm, 2>(codes, step, v));
      sum = dot_pairs(sum, x[3], (VecI)code_pairs<kForm, 3>(codes, step, v));
    }
  }
}

// kFetch: a tile that is alone asks for memory faster than the hardware's prefetching finds the
// streams: on Zen 5 one row reads a matrix of 1 MB 10 to 15 % faster, 12 rows are 1.1 to 1.5 times
// as fast.  A branch per step in place of the parameter costs the others 2 to 8 %.
template <Form kForm, bool kFetch, int kRows, int kPanels>
CPU_BACKEND_INLINE void dot_steps_pairs(IntTile<kRows, kPanels>& tile, const char* a,
                                        TileCodes& codes, int64_t steps) {
  constexpr int kBits = stored_bits(kForm);
  for (int64_t s = 0; s < steps; ++s, a += kRows * kPairsStep, codes.end_step(kBits)) {
    if constexpr (kFetch) codes.fetch_own(kBits, kPanels);
    if constexpr (kBits != 8 && kRows == 1) {
      dot_step_of_row<kForm>(tile, a, codes);
    } else {
      dot_part<kForm, 0>(tile, a, codes);
      dot_part<kForm, 1>(tile, a, codes);
      dot_part<kForm, 2>(tile, a, codes);
      dot_part<kForm, 3>(tile, a, codes);
    }
  }
}

#if defined(CPU_BACKEND_PLANES)
// A plane of some rows at a step, two rows at a time in blocks of two columns where there are such:
// the sums of rows r and r + 1, for even r, are then those of both rows with columns 0 and 1 and
// with columns 2 and 3 of each vector.
template <bool kSigned, int kRows>
CPU_BACKEND_INLINE void dot_plane(VecU (&sums)[kRows][kPanelVecs], const char* a,
                                  const VecU (&first)[kPanelVecs],
                                  const VecU (&second)[kPanelVecs]) {
  static_assert(kQuadsStep == 8, "a step of a row is half of a block");
  int r = 0;
#if defined(CPU_BACKEND_BLOCKS)
  for (; r + 2 <= kRows; r += 2) {
    const VecU rows = load_raw<VecU>(a + r * kQuadsStep);
    for (int v = 0; v < kPanelVecs; ++v) {
      const ColumnBlocks columns(first[v], second[v]);
      sums[r][v] = dot_blocks<kSigned>(sums[r][v], rows, columns.of[0]);
      sums[r + 1][v] = dot_blocks<kSigned>(sums[r + 1][v], rows, columns.of[1]);
    }
  }
#endif
  for (; r < kRows; ++r) {
    const TwoQuads row = load_raw<TwoQuads>(a + r * kQuadsStep);
    for (int v = 0; v < kPanelVecs; ++v) {
      sums[r][v] = dot_quad_of<kSigned, 0>(sums[r][v], row, first[v]);
      sums[r][v] = dot_quad_of<kSigned, 1>(sums[r][v], row, second[v]);
    }
  }
}

// Rows kFirst to kFirst + kCount - 1.  Bytes that are kept plus 128 give 128 times the sum of a
// column's codes too much.
template <Form kForm, bool kPairs, bool kFetch, int kFirst, int kCount, int kRows, int kPanels>
CPU_BACKEND_INLINE void dot_planes(IntTile<kRows, kPanels>& tile, const char* a, TileCodes& codes,
                                   int64_t steps) {
  constexpr int kPlanes = kPairs ? 2 : 1;
  constexpr bool kLast = kFirst + kCount == kRows;
  constexpr bool kSigned = kSignedBytes || met_bits(kForm) == 4;
  VecU sums[kPlanes][kPanels][kCount][kPanelVecs] = {};
  VecU columns[kPanels][kPanelVecs] = {};
  a += kFirst * kQuadsStep;
  for (int64_t s = 0; s < steps; ++s, a += kPlanes * kRows * kQuadsStep) {
    if constexpr (kFetch) codes.fetch_own(stored_bits(kForm), kPanels);
    for (int p = 0; p < kPanels; ++p) {
      VecU first[kPanelVecs], second[kPanelVecs];
      for (int v = 0; v < kPanelVecs; ++v) {
        first[v] = code_quads<kForm>(codes, codes.step(p), v, 0);
        second[v] = code_quads<kForm>(codes, codes.step(p), v, 1);
        if constexpr (!kSigned) {
          constexpr TwoQuads kOnes{0x01010101u, 0x01010101u};
          columns[p][v] = dot_quad_of<false, 0>(columns[p][v], kOnes, first[v]);
          columns[p][v] = dot_quad_of<false, 1>(columns[p][v], kOnes, second[v]);
        }
      }
      dot_plane<kSigned>(sums[0][p], a, first, second);
      if constexpr (kPairs) dot_plane<false>(sums[1][p], a + kRows * kQuadsStep, first, second);
    }
    if constexpr (kLast) {
      codes.end_step(stored_bits(kForm));
    } else {
      codes.at += step_bytes(stored_bits(kForm));
    }
  }
  for (int p = 0; p < kPanels; ++p)
    for (int v = 0; v < kPanelVecs; ++v) {
      VecU rows[kCount];
      for (int r = 0; r < kCount; ++r) {
        rows[r] = sums[0][p][r][v];
        if constexpr (kPairs) rows[r] = (rows[r] << 8) + sums[1][p][r][v];
      }
#if defined(CPU_BACKEND_BLOCKS)
      for (int r = 0; r + 2 <= kCount; r += 2) blocks_to_rows(rows[r], rows[r + 1]);
#endif
      for (int r = 0; r < kCount; ++r) {
        if constexpr (!kSigned) rows[r] = rows[r] - (columns[p][v] << (kPairs ? 15 : 7));
        VecI& sum = tile.sum[p][kFirst + r][v];
        sum = (VecI)((VecU)sum + rows[r]);
      }
    }
}

// As many rows at a time as have registers for the sums of their planes, in whole pairs: the codes
// of a segment stay in L1 meanwhile.
template <Form kForm, bool kPairs, bool kFetch, int kFirst = 0, int kRows, int kPanels>
CPU_BACKEND_INLINE void dot_steps_planes(IntTile<kRows, kPanels>& tile, const char* a,
                                         TileCodes& codes, int64_t steps) {
  constexpr int kMost = kPairs ? kMaxRows / 2 : kMaxRows;
  constexpr int kPart = round_up(ceil_div(kRows, ceil_div(kRows, kMost)), 2);
  if constexpr (kRows - kFirst > kPart) {
    TileCodes same = codes;
    dot_planes<kForm, kPairs, kFetch, kFirst, kPart>(tile, a, same, steps);
    dot_steps_planes<kForm, kPairs, false, kFirst + kPart>(tile, a, codes, steps);
  } else {
    dot_planes<kForm, kPairs, kFetch, kFirst, kRows - kFirst>(tile, a, codes, steps);
  }
}
#endif

// Returns where the activations go on.
template <Form kForm, bool kFetch, int kRows, int kPanels>
CPU_BACKEND_INLINE const char* dot_chain_quads(QuadSum (&sums)[kPanels][kRows][kPanelVecs],
                                               const char* a, TileCodes& codes, int64_t steps) {
  for (int64_t s = 0; s < steps; ++s, a += kRows * kQuadsStep, codes.end_step(stored_bits(kForm))) {
    if constexpr (kFetch) codes.fetch_own(stored_bits(kForm), kPanels);
    const auto dot_half = [&](int p, int half) CPU_BACKEND_LAMBDA {
      VecU quads[kPanelVecs];
      for (int v = 0; v < kPanelVecs; ++v)
        quads[v] = code_quads<kForm>(codes, codes.step(p), v, half);
      for (int r = 0; r < kRows; ++r) {
        const VecI four = broadcast(load_raw<int32_t>(a + r * kQuadsStep + 4 * half));
        for (int v = 0; v < kPanelVecs; ++v)
          sums[p][r][v] = dot_quads<met_bits(kForm)>(sums[p][r][v], four, quads[v]);
      }
    };
    // What takes long to unpack is used up at once.
    constexpr bool kNarrow = stored_bits(kForm) < 4;
#pragma GCC unroll 8
    for (int i = 0; i < 2 * kPanels; ++i)
      kNarrow ? dot_half(i / 2, i % 2) : dot_half(i % kPanels, i / kPanels);
  }
  return a;
}

template <Form kForm, bool kFetch, int kRows, int kPanels>
CPU_BACKEND_INLINE void dot_steps_quads(IntTile<kRows, kPanels>& tile, const char* a,
                                        TileCodes& codes, int64_t steps) {
  if constexpr (kSame<QuadSum, VecI>) {
    dot_chain_quads<kForm, kFetch>(tile.sum, a, codes, steps);
  } else {
    constexpr int64_t kChain = kQuadChain / 2;  // two quads per step
    for (; steps > 0; steps -= kChain) {
      QuadSum sums[kPanels][kRows][kPanelVecs] = {};
      a = dot_chain_quads<kForm, kFetch>(sums, a, codes, steps < kChain ? steps : kChain);
      for (int p = 0; p < kPanels; ++p)
        for (int r = 0; r < kRows; ++r)
          for (int v = 0; v < kPanelVecs; ++v)
            tile.sum[p][r][v] = add_quad_sum(tile.sum[p][r][v], sums[p][r][v]);
    }
  }
}

template <Form kForm, bool kQuads, bool kFetch, int kRows, int kPanels>
CPU_BACKEND_INLINE void dot_steps(IntTile<kRows, kPanels>& tile, const char* a, TileCodes& codes,
                                  int64_t steps) {
#if defined(CPU_BACKEND_PLANES)
  dot_steps_planes<kForm, !kQuads, kFetch>(tile, a, codes, steps);
#else
  if constexpr (kQuads) {
    dot_steps_quads<kForm, kFetch>(tile, a, codes, steps);
  } else {
    dot_steps_pairs<kForm, kFetch>(tile, a, codes, steps);
  }
#endif
}

// Codes with levels that meet the activations as they are: every kLevelChannels channels add
//   dot(a, step * code + base) = step * dot(a, code) + base * sum(a),
// the same whole numbers that the expanded codes give.
template <bool kQuads, int kRows, int kPanels>
CPU_BACKEND_INLINE void dot_levels(IntTile<kRows, kPanels>& tile, const char* a, TileCodes& codes,
                                   int64_t steps) {
  constexpr int64_t kSteps = QuantLayout::kLevelChannels / QuantLayout::kStep;
  constexpr int64_t kRowStep = kQuads ? kQuadsStep : kPairsStep;
  for (; steps > 0; steps -= kSteps, a += kSteps * kRows * kRowStep, codes.pieces += kRows) {
    const char* levels = codes.at;
    codes.at += kLevelsBytes;
    IntTile<kRows, kPanels> dots{};
    if (steps >= kSteps) {
      dot_steps<form_of(4), kQuads, true>(dots, a, codes, kSteps);
    } else {
      dot_steps<form_of(4), kQuads, true>(dots, a, codes, steps);
    }
    for (int p = 0; p < kPanels; ++p) {
      for (int v = 0; v < kPanelVecs; ++v) {
        const VecU level = widen_bits(load_raw<VecH>(levels + p * codes.stride + 2 * v * kLanes));
        for (int r = 0; r < kRows; ++r)
          tile.sum[p][r][v] += (VecI)((level & 0xffu) * (VecU)dots.sum[p][r][v] +
                                      (level >> 8) * (VecU)broadcast(codes.pieces[r]));
      }
    }
  }
}

// The quantized rows of a tile at one segment; kernels/quant_rows.h.
struct TileRows {
  const char* codes;
  const float* scales;
  const int32_t* starts;
  const int32_t* pieces;

  // `rows` rows that begin at row `row` of data.
  CPU_BACKEND_INLINE TileRows(const QuantLayout& layout, ConstData data, int64_t row, int64_t rows)
      : codes(static_cast<const char*>(data) + row * quant_row_bytes(layout)),
        scales(reinterpret_cast<const float*>(codes + rows * row_codes_bytes(layout))),
        starts(reinterpret_cast<const int32_t*>(scales + rows * layout.segments())),
        pieces(starts + rows * layout.segments()) {}
  CPU_BACKEND_INLINE void end_segment(int64_t rows, int64_t bytes) {
    scales += rows;
    starts += rows;
    codes += bytes;
  }
  // What an offset is multiplied with.
  CPU_BACKEND_INLINE float total(int row) const { return load_raw<float>(starts + row); }
};

// What the dot product of a segment starts from, in place of zero: minus zero * sum.
template <int kRows>
CPU_BACKEND_INLINE void start_panel(const QuantLayout& layout, const char* group, const TileRows& a,
                                    VecI (&sum)[kRows][kPanelVecs]) {
  switch (layout.zero) {
    case ZeroKind::kMiddle:
    case ZeroKind::kLevels:
#pragma GCC unroll 12
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < kPanelVecs; ++v) sum[r][v] = broadcast(a.starts[r]);
      return;
    case ZeroKind::kPoint:
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVecs; ++v) {
        const VecI zero =
            round_to_int(load_scale(layout.scale_type, group + scale_bytes(layout), v));
#pragma GCC unroll 12
        for (int r = 0; r < kRows; ++r)
          sum[r][v] = (VecI)((VecU)zero * (VecU)broadcast(a.starts[r]));
      }
      return;
    case ZeroKind::kOffset:
      return;
  }
}

// total += one segment, scaled.
template <int kRows>
CPU_BACKEND_INLINE void add_panel(const QuantLayout& layout, const char* group, const TileRows& a,
                                  const VecI (&sum)[kRows][kPanelVecs],
                                  Vec (&total)[kRows][kPanelVecs]) {
  Vec scale[kPanelVecs], zero[kPanelVecs];
  for (int v = 0; v < kPanelVecs; ++v) scale[v] = load_scale(layout.scale_type, group, v);
  if (layout.zero == ZeroKind::kOffset) {
    for (int v = 0; v < kPanelVecs; ++v)
      zero[v] = load_scale(layout.scale_type, group + scale_bytes(layout), v);
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVecs; ++v) {
        total[r][v] = total[r][v] + from_int(sum[r][v]) * a.scales[r] * scale[v];
        total[r][v] = total[r][v] + zero[v] * a.total(r);
      }
  } else {
#pragma GCC unroll 12
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < kPanelVecs; ++v)
        total[r][v] = total[r][v] + from_int(sum[r][v]) * a.scales[r] * scale[v];
  }
}

// The tile that kernels/formats/integers.h drives: kRows rows of kPanels panels in registers.
template <int kBits, bool kQuads, int kRows, int kPanels>
class RegisterTile {
 public:
  static constexpr bool kMayExpand = kBits == 8 && kPanels == 1;

  CPU_BACKEND_INLINE RegisterTile(const QuantLayout&, int64_t, float*, float*) {}

  CPU_BACKEND_INLINE int64_t code_bytes(int64_t steps) const {
    return steps * kRows * (kQuads ? kQuadsStep : kPairsStep);
  }
  // Adds the product of one segment of a group that begins at `group`.
  CPU_BACKEND_INLINE void add_segment(const QuantLayout& layout, const char* group,
                                      const TileRows& a, TileCodes& codes, int64_t steps) {
    IntTile<kRows, kPanels> tile{};
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) start_panel(layout, group + p * codes.stride, a, tile.sum[p]);
    dot(layout, tile, a.codes, codes, steps);
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p)
      add_panel(layout, group + p * codes.stride, a, tile.sum[p], total_[p]);
  }
  // Into block[kPanels][kRows][kPanelWidth].
  CPU_BACKEND_INLINE void end(float* block) const {
    for (int p = 0; p < kPanels; ++p)
      for (int r = 0; r < kRows; ++r)
        for (int v = 0; v < kPanelVecs; ++v, block += kLanes) store(block, total_[p][r][v]);
  }

 private:
  static constexpr bool kFew = kBits <= 4 && kRows <= QuantLayout::kFewRows;  // which are one tile

  CPU_BACKEND_INLINE static void dot(const QuantLayout& layout, IntTile<kRows, kPanels>& tile,
                                     const char* a, TileCodes& codes, int64_t steps) {
    if constexpr (kFew && kBits == 4) {
      if (layout.zero == ZeroKind::kLevels) return dot_levels<kQuads>(tile, a, codes, steps);
    }
    if constexpr (kFew && (!kQuads || (kQuads8 && kBits == 4))) {
      if (layout.kind == CodeKind::kTable)
        return dot_steps<form_of(kBits, true), kQuads, true>(tile, a, codes, steps);
    }
    constexpr Form kForm = form_of(kBits);
    constexpr bool kIsAlone = kRows == 1 || kBits < 4;
    if (kIsAlone || codes.alone) {
      dot_steps<kForm, kQuads, true>(tile, a, codes, steps);
    } else if constexpr (!kIsAlone) {
      dot_steps<kForm, kQuads, false>(tile, a, codes, steps);
    }
  }

  Vec total_[kPanels][kRows][kPanelVecs] = {};
};

}  // namespace CPU_BACKEND_NAMESPACE
