#include "torch_ops/product.h"

#include <algorithm>
#include <cstring>

#include "torch_ops/parallel.h"

namespace cpu_backend {
namespace {

// Of L2, for an item's rows while panels pass by.  CPUs with matrix tiles, which take a panel from
// memory once for all rows of a tile, have 2 MiB.
constexpr int64_t kCacheBytes = 128 * 1024, kLargeCacheBytes = 1024 * 1024;

// Items of whole tiles of equal size; layout as multiplied.
struct ItemTiles {
  int64_t rows, tile_rows;

  ItemTiles(const QuantLayout& layout, int64_t m) {
    const KernelTable& table = kernels();
    int64_t tile = table.quant_tile_rows;
    int64_t wanted = m;
    if (tile > kMostItemRows) {
      // Sums and results of all rows come and go with every segment, so fewer rows stay in L1.
      const int64_t most = layout.segments() == 1 ? tile : tile / 2;
      const int64_t fitting = kLargeCacheBytes / table.quant_row_bytes(layout);
      tile = std::clamp(fitting, kMostItemRows, most);
      wanted = ceil_div(m, ceil_div(m, tile));
    } else {
      const int64_t fitting = kCacheBytes / table.quant_row_bytes(layout);
      wanted = std::min(m, item_rows(m, fitting, kLeastItemRows));
    }
    const int64_t tiles = ceil_div(wanted, tile);
    tile_rows = ceil_div(wanted, tiles);
    rows = tiles * tile_rows;
  }
};

}  // namespace

int64_t product_row_bytes(const PackedLinear& weight, int64_t element_bytes) {
  if (!weight.meets_integers()) return padded_depth(weight.k) * element_bytes;
  const QuantLayout& layout = weight.quantized->layout;
  return std::max(kernels().quant_row_bytes(layout.multiplied(1)),
                  kernels().quant_row_bytes(layout.expanded()));
}

int64_t product_scratch_floats(const PackedLinear& weight) {
  return kernels().gemm_scratch_floats(weight.quantized ? &weight.quantized->layout : nullptr);
}

GemmPlan Product::plan(int64_t threads) const {
  const GemmShape shape{m, weight->n, weight->k, kernels().panel_count(weight->n, weight->parts),
                        epilogue.gated ? 2 : 1};
  const int64_t item_rows =
      weight->meets_integers()
          ? ItemTiles(weight->quantized->layout.multiplied(m), m).rows
          : kernels().gemm_item_rows(dtype, m, weight->k, weight->quantized != nullptr);
  return plan_gemm(shape, item_rows, threads);
}

QuantRows Product::quant_rows() const {
  return {rows, m, ItemTiles(weight->quantized->layout.multiplied(m), m).tile_rows};
}

void Product::take_rows(const void* x, int64_t x_stride, Slice taken) const {
  if (!weight->meets_integers()) {
    const int64_t element = bytes_of(dtype);
    for (int64_t r = taken.begin; r < taken.end; ++r)
      std::memcpy(static_cast<char*>(rows) + r * rows_stride * element,
                  static_cast<const char*>(x) + r * x_stride * element, weight->k * element);
    return;
  }
  const QuantizedWeight& quantized = *weight->quantized;
  QuantRowsArgs args{};
  args.layout = quantized.layout.multiplied(m);
  args.x = x;
  args.x_stride = x_stride;
  args.channels_in = weight->k;
  args.channels =
      quantized.channels.defined() ? quantized.channels.const_data_ptr<int32_t>() : nullptr;
  args.static_scale = &quantized.static_scale;
  args.static_zero = &quantized.static_zero;
  args.rows = quant_rows();
  kernels().quantize_rows(dtype, args, taken);
}

void Product::run(const GemmPlan& plan, int64_t item, float* scratch) const {
  const QuantLayout* const codes = weight->quantized ? &weight->quantized->layout : nullptr;
  const GemmArgs args{
      rows,          rows_stride, weight->packed.const_data_ptr(),
      weight->parts, weight->n,   codes ? codes->k : weight->k,
      epilogue,      codes,       weight->meets_integers() ? quant_rows() : QuantRows{},
      row_shift,     column_shift};
  kernels().gemm(dtype, args, plan.rows(item), plan.panels(item), scratch);
}

Activation activation_named(c10::string_view name) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  if (name == "gelu_quick") return Activation::kGeluQuick;
  if (name == "relu2") return Activation::kRelu2;
  if (name == "swigluoai") return Activation::kSwigluOai;
  if (name == "swiglustep") return Activation::kSwigluStep;
  TORCH_CHECK_VALUE(false, "activation '", name,
                    "' is unknown: silu, gelu, gelu_tanh, gelu_quick, relu2, swigluoai and "
                    "swiglustep are known.");
}

void run_product(const Product& product) {
  const GemmPlan plan = product.plan(at::get_num_threads());
  parallel_items([=] { return plan.items(); }, product_scratch_floats(*product.weight),
                 [=](int64_t item, float* scratch) { product.run(plan, item, scratch); });
}

}  // namespace cpu_backend
