// Linear layers: c[m][n] = sum_k a[m][k] * weight[n][k], weight packed once at load; then what
// kernels/epilogue.h describes.
//
// Weights   kernels/formats/: how a panel is packed and meets some rows, by the tiles of
//           kernels/tiles/.  A format is a class and a line in with_weight().
// Blocking  rows are made ready once for all panels, as deep as they fit L2; then each panel
// streams
//           past them.  Where the depth is cut, products wait for the rest of it.
// Shapes    any m, n, k >= 1.
// Numerics  of the format; whatever the blocks and items, an element is the same.
// Threads   none: rows x panels given by the caller; scratch of gemm_scratch_floats() per thread.
#pragma once

#include "kernels/epilogue.h"
#include "kernels/formats/fp8.h"
#include "kernels/formats/integers.h"
#include "kernels/formats/plain.h"

namespace CPU_BACKEND_NAMESPACE {

// f(weight), of whatever format it is.
template <class T, class F>
CPU_BACKEND_INLINE void with_weight(const GemmArgs& args, F f) {
  if (!args.codes) return f(PlainWeight<T>(args));
  if (args.codes->activations == Activations::kFloat) return f(Fp8Weight<T>(args));
  f(IntegerWeight(args));
}

// Products that wait for the rest of their depth, or to be stored: 64 KiB; with tiles a quarter of
// L2.
constexpr int64_t kProductFloats = kHasTiles ? 131072 : 16384;
static_assert(kProductFloats >= IntegerWeight::kStoredFloats, "products");

static inline int64_t gemm_scratch_floats(const QuantLayout* codes) {
  return kProductFloats + (codes && codes->activations != Activations::kFloat
                               ? IntegerWeight::scratch_floats(*codes)
                               : Fp8Weight<float>::kScratchFloats);
}

// Of fewer panels even the first one is worth more than the rows: two threads with 64 and 256 rows
// and weights from memory were 2 to 7 % slower (576 channels, Zen 4).
constexpr int64_t kManyPanels = 8;

// Rows that weight.item_rows() allows, by panels.
template <class T, class Weight>
void gemm_block(const GemmArgs& args, const Weight& weight, Slice rows, Slice panels,
                float* scratch) {
  float* const products = scratch;
  float* const beside = scratch + kProductFloats;
  auto taken = weight.rows(args, rows);

  // As deep as the rows fit.  Then panels go in equal groups: as many as their products can wait,
  // or, where nothing waits for its depth, those that are stored together.
  const int64_t deep = weight.depth(taken.count);
  const int64_t at_once = weight.at_once(taken.count);
  const int64_t pair = args.epilogue.gated ? 2 : 1;
  const int64_t waiting = kProductFloats / (taken.count * kPanelWidth);
  const int64_t stored = weight.stored_together(taken.count, args.epilogue.gated);
  const int64_t most = (deep < args.k || waiting < stored ? waiting : stored) / pair;
  for (int64_t p = panels.begin, end = p; p < panels.end; p = end) {
    const int64_t left = (panels.end - p) / pair;
    end = p + ceil_div(left, ceil_div(left, most < 1 ? 1 : most)) * pair;
    for (int64_t k_end; taken.k < args.k; taken.k = k_end) {
      k_end = weight.part_end(taken.k, deep);
      taken.depth = k_end - taken.k;
      if (deep < args.k || p == panels.begin) weight.take(taken, beside);
      for (int64_t q = p; q < end; q += at_once) {
        const bool first = q == panels.begin && panels.end - panels.begin >= kManyPanels;
        const Slice now{q, q + at_once < end ? q + at_once : end};
        const bool ready = k_end >= args.k && now.end == end;
        const auto fetch = [&](int64_t row) CPU_BACKEND_LAMBDA {
          if (!ready || end - p > pair) return;
          const int64_t next = row + weight.tile_rows();
          const int64_t last = next < taken.count ? next : taken.count;
          fetch_results<T>(args.epilogue, {rows.begin + row, rows.begin + last},
                           panel_columns(args.n, args.parts, p).begin);
        };
        fetch(0);
        weight.multiply(taken, now, products + (q - p) * taken.count * kPanelWidth, first, beside,
                        [&](int64_t row, int64_t count) CPU_BACKEND_LAMBDA {
                          if (!ready) return;
                          store_panels<T>(args.epilogue, args.n, args.parts, rows.begin + row,
                                          count, {p, end}, products + row * kPanelWidth,
                                          taken.count);
                          fetch(row + count);
                        });
      }
    }
    taken.k = 0;
  }
}

// Rows [rows.begin, rows.end), of integers whole tiles, x panels [panels.begin, panels.end) of c;
// with a gated epilogue panels come in whole pairs.
template <class T>
void gemm(const GemmArgs& args, Slice rows, Slice panels, float* scratch) {
  with_weight<T>(args, [&](const auto& weight) CPU_BACKEND_LAMBDA {
    const int64_t step = weight.item_rows(rows.end - rows.begin);
    for (int64_t r = rows.begin; r < rows.end; r += step)
      gemm_block<T>(args, weight, {r, r + step < rows.end ? r + step : rows.end}, panels, scratch);
  });
}

}  // namespace CPU_BACKEND_NAMESPACE
