// Linear layers: c[m][n] = sum_k a[m][k] * weight[n][k], weight packed once at load; then what
// kernels/epilogue.h describes.
//
// Weights   kernels/formats/: how a panel is packed and meets some rows.
// Blocking  rows of a are widened to fp32 once for all panels, as deep as they fit L2; then each
//           panel streams past them.
// Shapes    any m, n, k >= 1.
// Numerics  fp32 accumulation in chains of kChainLength in the order of k, whatever the blocks.
// Threads   none: rows x panels given by the caller; scratch of gemm_scratch_floats() per thread.
#pragma once

#include "kernels/epilogue.h"
#include "kernels/formats/fp8.h"
#include "kernels/formats/plain.h"

namespace CPU_BACKEND_NAMESPACE {

// Products that wait for the rest of their depth, or to be stored: 64 KiB; with tiles a quarter of
// L2.
constexpr int64_t kProductFloats = kHasTiles ? 131072 : 16384;

constexpr int64_t gemm_scratch_floats() {
  return kActivationFloats + kProductFloats + kDecodedPanelFloats + kGroupFloats;
}

// Panels whose products are stored together.
template <class T>
constexpr int64_t kStoredTogether = kInTiles<T> ? 8 : 1;

// Of fewer panels even the first one is worth more than the rows: two threads with 64 and 256 rows
// and weights from memory were 2 to 7 % slower (576 channels, Zen 4).
constexpr int64_t kManyPanels = 8;

// Rows that gemm_item_rows() allows, by panels.
template <class T, class Weight>
void gemm_block(const GemmArgs& args, const Weight& weight, Slice rows, Slice panels,
                float* scratch) {
  const T* a = static_cast<const T*>(args.a) + rows.begin * args.a_stride;
  float* const products = scratch + kActivationFloats;
  float* const beside = products + kProductFloats;
  TakenRows<T> taken{};
  taken.count = rows.end - rows.begin;
  taken.size = args.k;

  // As deep as the activations fit.  Then panels go in groups: as many as their products can wait,
  // or, where nothing waits, those that are taken at once.
  const int64_t deep = taken_depth<T>(taken.count, args.k);
  const int64_t at_once = panels_at_once(taken.count);
  const int64_t pair = args.epilogue.gated ? 2 : 1;
  const int64_t waiting = kProductFloats / (taken.count * kPanelWidth) / pair * pair;
  const int64_t stored = kStoredTogether<T> > at_once ? kStoredTogether<T> : at_once;
  const int64_t group = deep < args.k || waiting < stored ? waiting : stored > pair ? stored : pair;
  for (int64_t p = panels.begin; p < panels.end; p += group) {
    const int64_t end = p + group < panels.end ? p + group : panels.end;
    for (int64_t k_end; taken.k < args.k; taken.k = k_end) {
      k_end = weight.part_end(taken.k, deep);
      taken.depth = k_end - taken.k;
      if (deep < args.k || p == panels.begin) take_rows(taken, a + taken.k, args.a_stride, scratch);
      for (int64_t q = p; q < end; q += at_once) {
        const bool first = q == panels.begin && panels.end - panels.begin >= kManyPanels;
        const Slice now{q, q + at_once < end ? q + at_once : end};
        const bool ready = k_end >= args.k && now.end == end;
        const auto fetch = [&](int64_t row) CPU_BACKEND_LAMBDA {
          if (!ready || end - p > pair) return;
          const int64_t last = row + kMaxRows < taken.count ? row + kMaxRows : taken.count;
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

// Rows [rows.begin, rows.end) x panels [panels.begin, panels.end) of c; with a gated epilogue
// panels come in whole pairs.
template <class T>
void gemm(const GemmArgs& args, Slice rows, Slice panels, float* scratch) {
  const int64_t step = gemm_item_rows<T>(rows.end - rows.begin, args.k, args.codes);
  for (int64_t r = rows.begin; r < rows.end; r += step) {
    const Slice now{r, r + step < rows.end ? r + step : rows.end};
    if (args.codes) {
      gemm_block<T>(args, Fp8Weight<T>(args), now, panels, scratch);
    } else {
      gemm_block<T>(args, PlainWeight<T>(args), now, panels, scratch);
    }
  }
}

}  // namespace CPU_BACKEND_NAMESPACE
