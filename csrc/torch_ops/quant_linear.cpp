// Quantized linear layers: packing any scheme's weight, running it, and the host's int8 product.
#include <algorithm>
#include <cmath>

#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/product.h"
#include "torch_ops/views.h"
#include "torch_ops/weight_memory.h"

namespace cpu_backend {
namespace {

template <class Enum>
Enum one_of(const std::string& text, const char* name,
            std::initializer_list<std::pair<const char*, Enum>> known) {
  std::string words;
  for (const auto& [word, value] : known) {
    if (text == word) return value;
    words += (words.empty() ? "" : ", ") + std::string(word);
  }
  TORCH_CHECK_VALUE(false, name, " is \"", text, "\"; known are ", words, ".");
}

Activations activations_of(const std::string& text) {
  return one_of<Activations>(text, "activations",
                             {{"int16", Activations::kInt16},
                              {"int8", Activations::kInt8},
                              {"int8_token", Activations::kInt8Token},
                              {"int8_token_azp", Activations::kInt8TokenAzp},
                              {"int8_static", Activations::kInt8Static},
                              {"int8_static_azp", Activations::kInt8StaticAzp},
                              {"float", Activations::kFloat}});
}

ZeroKind zero_kind_of(const std::string& text) {
  return one_of<ZeroKind>(
      text, "zero_kind",
      {{"point", ZeroKind::kPoint}, {"offset", ZeroKind::kOffset}, {"levels", ZeroKind::kLevels}});
}

CodeOrder order_of(const std::string& text) {
  return one_of<CodeOrder>(text, "order",
                           {{"bytes", CodeOrder::kBytes},
                            {"pairs_of_k", CodeOrder::kPairsOfK},
                            {"words_of_k", CodeOrder::kWordsOfK},
                            {"words_of_n", CodeOrder::kWordsOfN},
                            {"words_of_n_awq", CodeOrder::kWordsOfNAwq}});
}

// [groups, n] of the scales' type, whatever its strides.
void check_group_table(const at::Tensor& table, const QuantLayout& layout, at::ScalarType type,
                       const char* name) {
  TORCH_CHECK_TYPE(table.scalar_type() == type, name, " have dtype ", table.scalar_type(),
                   " but the scales have ", type, "; they must agree.");
  TORCH_CHECK_VALUE(
      table.dim() == 2 && table.size(0) == layout.groups() && table.size(1) == layout.n, name,
      " have shape ", table.sizes(), ", expected [", layout.groups(), ", ", layout.n,
      "]: ", layout.k, " channels in groups of ", layout.group, ".");
}

// Codes of every column and channel are inside the tensor.
void check_codes(const at::Tensor& codes, CodeOrder order, int64_t bits, int64_t n, int64_t k) {
  TORCH_CHECK_VALUE(codes.dim() == 2, "codes must be a matrix, they are ", codes.sizes(), ".");
  if (order == CodeOrder::kBytes) {
    TORCH_CHECK_TYPE(codes.scalar_type() == at::kByte || codes.scalar_type() == at::kChar ||
                         codes.scalar_type() == at::kFloat8_e4m3fn,
                     "codes in bytes have dtype ", codes.scalar_type(),
                     ", not uint8, int8 or float8_e4m3fn.");
    check_shape(codes, {n, k}, "codes");
    return;
  }
  if (order == CodeOrder::kPairsOfK) {
    TORCH_CHECK_TYPE(codes.scalar_type() == at::kByte, "codes in pairs have dtype ",
                     codes.scalar_type(), ", not uint8.");
    TORCH_CHECK_VALUE(bits == 4, "two codes in a byte have 4 bits each, not ", bits, ".");
    check_shape(codes, {n, ceil_div(k, 2)}, "codes");
    return;
  }
  TORCH_CHECK_TYPE(codes.scalar_type() == at::kInt, "packed codes have dtype ", codes.scalar_type(),
                   ", not int32.");
  const bool along_k = order == CodeOrder::kWordsOfK;
  const int64_t words = ceil_div((along_k ? k : n) * bits, 32);
  check_shape(codes, {along_k ? n : k, words}, "codes");
  TORCH_CHECK_VALUE(order != CodeOrder::kWordsOfNAwq || (bits == 4 && n % 8 == 0),
                    "AWQ's order of codes is one of eight 4-bit columns per word, these are ", bits,
                    " bits of ", n, " columns.");
}

// fp8 codes are multiplied as numbers, the others as integers.
CodeKind kind_of(const at::Tensor& codes, const QuantLayout& layout, bool zeros, bool table) {
  if (table) {
    TORCH_CHECK_VALUE(layout.bits <= 4 && !zeros && layout.activations != Activations::kFloat,
                      "codes of a table have at most 4 bits and no zeros, and meet integers.");
    return CodeKind::kTable;
  }
  const bool fp8 = codes.scalar_type() == at::kFloat8_e4m3fn;
  TORCH_CHECK_VALUE(fp8 == (layout.activations == Activations::kFloat),
                    "float8_e4m3fn weights take activations \"float\", integers do not.");
  if (!fp8) return CodeKind::kInteger;
  TORCH_CHECK_VALUE(layout.bits == 8 && !zeros, "float8_e4m3fn weights have 8 bits and no zeros.");
  const at::Tensor magnitudes = codes.view(at::kByte).bitwise_and(0x7f);
  TORCH_CHECK_VALUE(!magnitudes.eq(0x7f).any().item<bool>(), "the weight has NaN in it.");
  return CodeKind::kFp8;
}

// step + 256 * base of ZeroKind::kLevels, [pieces of 32 channels, n] in 16 bits.
void check_levels(const at::Tensor& levels, const QuantLayout& layout) {
  constexpr int64_t kPiece = QuantLayout::kLevelChannels;
  TORCH_CHECK_VALUE(layout.bits == 4 && layout.activations != Activations::kFloat,
                    "levels belong to integer codes of 4 bits.");
  TORCH_CHECK_VALUE(layout.group <= QuantLayout::kStep * QuantLayout::kSegmentSteps &&
                        (layout.group == layout.k || layout.group % kPiece == 0),
                    "with levels a group has at most 128 channels and is a multiple of ", kPiece,
                    ", this one has ", layout.group, ".");
  TORCH_CHECK_TYPE(levels.scalar_type() == at::kUInt16, "levels have dtype ", levels.scalar_type(),
                   ", not uint16.");
  check_shape(levels, {ceil_div(layout.k, kPiece), layout.n}, "levels");
  const at::Tensor numbers = levels.to(at::kInt);
  TORCH_CHECK_VALUE(numbers.bitwise_and(255)
                        .mul(15)
                        .add(numbers.bitwise_right_shift(8))
                        .le(255)
                        .all()
                        .item<bool>(),
                    "a step and base of the levels pass 255: 15 * step + base must not.");
}

int64_t pack(QuantPackArgs args, const at::Tensor& scales, int64_t in_features,
             std::unique_ptr<QuantizedWeight> quantized) {
  const KernelTable& table = kernels();
  const QuantLayout& layout = args.layout;
  auto linear = std::make_unique<PackedLinear>();
  linear->packed = WeightMemory::allocate(table.quant_packed_bytes(layout), at::kByte);
  linear->dtype = scales.scalar_type();
  linear->n = layout.n;
  linear->k = in_features;
  linear->parts = layout.parts;
  args.scales = scales.const_data_ptr();
  args.scale_group_stride = scales.stride(0);
  args.scale_n_stride = scales.stride(1);
  args.packed = linear->packed.data_ptr();
  parallel_slices(table.panel_count(layout.n, layout.parts),
                  row_grain(layout.k * table.panel_width),
                  [&](Slice panels) { table.pack_quant(args, panels); });
  linear->quantized = std::move(quantized);
  return reinterpret_cast<int64_t>(linear.release());
}

}  // namespace

int64_t pack_quantized(const at::Tensor& codes, const std::string& order, int64_t bits, int64_t add,
                       const OptionalTensor& table, int64_t in_features, const at::Tensor& scales,
                       const OptionalTensor& zeros, const std::string& zero_kind,
                       const OptionalTensor& channels, int64_t group,
                       const std::string& activations, double static_scale, int64_t static_zero,
                       int64_t parts) {
  TORCH_CHECK_VALUE(bits >= 2 && bits <= 8, "codes of ", bits, " bits are not supported: 2 to 8.");
  TORCH_CHECK_VALUE(scales.dim() == 2 && scales.numel() > 0,
                    "scales must be a matrix [groups, out_features], they are ", scales.sizes(),
                    ".");
  auto quantized = std::make_unique<QuantizedWeight>();
  QuantLayout& layout = quantized->layout;
  layout.bits = bits <= 4 ? static_cast<int>(bits) : 8;
  layout.zero = zeros ? zero_kind_of(zero_kind) : ZeroKind::kMiddle;
  layout.scale_type = dtype_of(scales, "scales");
  layout.activations = activations_of(activations);
  layout.n = scales.size(1);
  layout.k = channels ? channels->numel() : in_features;
  check_parts(layout.n, parts);
  layout.parts = static_cast<int>(parts);
  TORCH_CHECK_VALUE(in_features >= 1 && layout.k >= 1, "a weight needs at least one channel.");
  TORCH_CHECK_VALUE(group >= 1 && group <= layout.k, "a group of ", group, " channels of ",
                    layout.k, " is not possible.");
  layout.group = group;
  check_group_table(scales, layout, scales.scalar_type(), "scales");
  layout.kind = kind_of(codes, layout, zeros.has_value(), table.has_value());
  if (table) {
    check_shape(*table, {16}, "table");
    std::copy_n(typed_data<uint8_t>(*table, "table"), 16, layout.table);
  }
  TORCH_CHECK_VALUE(static_zero >= -128 && static_zero <= 127, "the activations' zero point ",
                    static_zero, " is no int8.");
  quantized->static_scale = static_cast<float>(static_scale);
  quantized->static_zero = static_cast<int32_t>(static_zero);
  QuantPackArgs args{};
  args.layout = layout;
  args.order = order_of(order);
  args.source_bits = static_cast<int>(bits);
  args.add = static_cast<int>(add);
  check_codes(codes, args.order, bits, layout.n, in_features);
  args.codes = codes.const_data_ptr();
  // A matrix of a stream has its words last.
  const bool n_first = args.order != CodeOrder::kWordsOfN && args.order != CodeOrder::kWordsOfNAwq;
  args.n_stride = codes.stride(n_first ? 0 : 1);
  args.k_stride = codes.stride(n_first ? 1 : 0);
  if (zeros) {
    if (layout.zero == ZeroKind::kLevels) {
      check_levels(*zeros, layout);
    } else {
      check_group_table(*zeros, layout, scales.scalar_type(), "zeros");
    }
    args.zeros = zeros->const_data_ptr();
    args.zero_group_stride = zeros->stride(0);
    args.zero_n_stride = zeros->stride(1);
  }
  if (channels) {
    TORCH_CHECK_VALUE(layout.kind != CodeKind::kFp8,
                      "float8_e4m3fn weights take their channels as they come.");
    const int32_t* list = typed_data<int32_t>(*channels, "channels");
    for (int64_t i = 0; i < layout.k; ++i)
      TORCH_CHECK_VALUE(list[i] >= -1 && list[i] < in_features, "channel ", list[i], " of ",
                        in_features, " does not exist.");
    quantized->channels = channels->clone();
    args.channels = list;
  }
  return pack(args, scales, in_features, std::move(quantized));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, double> quantize_weight(const at::Tensor& weight,
                                                                       int64_t bits,
                                                                       int64_t group) {
  TORCH_CHECK_VALUE(weight.dim() == 2 && weight.numel() > 0, "a weight must be a matrix, this is ",
                    weight.sizes(), ".");
  TORCH_CHECK_VALUE(bits == 4 || bits == 8, "codes have 4 or 8 bits, not ", bits, ".");
  TORCH_CHECK_VALUE(group >= 1 && group <= QuantWeightArgs::kMostGroup, "a group of ", group,
                    " channels is not possible: 1 to ", QuantWeightArgs::kMostGroup, ".");
  const Rows rows = rows_of(weight, "weight");
  constexpr int64_t kPiece = QuantLayout::kLevelChannels;
  TORCH_CHECK_VALUE(bits == 8 || group % kPiece == 0 || group >= rows.size,
                    "a group of 4-bit codes is a multiple of ", kPiece,
                    " channels or all of them, not ", group, " of ", rows.size, ".");
  const int64_t groups = ceil_div(rows.size, group);
  const at::Tensor codes = at::empty({rows.count, rows.size}, at::kByte);
  const at::Tensor scales = at::empty({rows.count, groups}, at::kHalf);
  const at::Tensor levels =
      at::empty({bits == 4 ? rows.count : 0, ceil_div(rows.size, kPiece)}, at::kUInt16);
  const at::Tensor squares = at::zeros({rows.count, 2}, at::kDouble);
  QuantWeightArgs args{};
  args.bits = static_cast<int>(bits);
  args.group = group;
  args.x = rows.data;
  args.x_stride = rows.stride;
  args.size = rows.size;
  args.codes = codes.data_ptr<uint8_t>();
  args.scales = scales.data_ptr();
  args.levels = levels.data_ptr<uint16_t>();
  args.squares = squares.data_ptr<double>();
  const DType dtype = dtype_of(weight, "weight");
  parallel_slices(rows.count, row_grain(rows.size),
                  [=](Slice slice) { kernels().quantize_weight(dtype, args, slice); });
  const at::Tensor sums = squares.sum(0);
  const double lost = sums[0].item<double>();
  const double all = sums[1].item<double>();
  return {codes, scales, levels, all == 0.0 ? 0.0 : std::sqrt(lost / all)};
}

int64_t packed_bytes(int64_t handle) {
  return static_cast<int64_t>(packed_linear(handle).packed.nbytes());
}

// ---- the host's int8 products
// --------------------------------------------------------------------

int64_t create_scaled_linear(const at::Tensor& b, const at::Tensor& b_scales, at::ScalarType, bool,
                             bool use_azp, int64_t) {
  TORCH_CHECK_VALUE(b.dim() == 2 && b.numel() > 0, "an int8 weight must be a matrix, this one is ",
                    b.sizes(), ".");
  TORCH_CHECK_TYPE(b.scalar_type() == at::kChar, "the weight has dtype ", b.scalar_type(),
                   ", expected int8.");
  const int64_t k = b.size(0);
  const int64_t n = b.size(1);
  TORCH_CHECK_VALUE(b_scales.numel() == 1 || b_scales.numel() == n, "weight scales have shape ",
                    b_scales.sizes(), ", expected one, or one per column of ", n, ".");
  const at::Tensor scales = b_scales.to(at::kFloat).reshape({1, -1}).expand({1, n});
  auto quantized = std::make_unique<QuantizedWeight>();
  quantized->layout = {8, ZeroKind::kMiddle, DType::kFloat32, Activations::kInt8Static, n, k, k};
  if (use_azp) quantized->column_shift = (b.sum(0, false, at::kFloat) * scales[0]).contiguous();
  QuantPackArgs args{};
  args.layout = quantized->layout;
  args.order = CodeOrder::kBytes;
  args.source_bits = 8;
  args.add = 128;
  args.codes = b.const_data_ptr();
  args.n_stride = b.stride(1);
  args.k_stride = b.stride(0);
  return pack(args, scales, k, std::move(quantized));
}

void onednn_scaled_mm(at::Tensor& c, const at::Tensor& a, const at::Tensor& a_scales,
                      const OptionalTensor& azp, const OptionalTensor& azp_adj,
                      const OptionalTensor& bias, const at::Tensor& handle) {
  const PackedLinear& weight = packed_linear(handle.item<int64_t>());
  TORCH_CHECK_VALUE(weight.quantized,
                    "this weight was not packed by "
                    "create_onednn_scaled_mm_handler.");
  const QuantizedWeight& quantized = *weight.quantized;
  TORCH_CHECK_TYPE(a.scalar_type() == at::kChar, "activations have dtype ", a.scalar_type(),
                   ", expected int8.");
  TORCH_CHECK_VALUE(a.dim() == 2 && a.size(1) == weight.k, "input has shape ", a.sizes(),
                    ", the weight needs [tokens, ", weight.k, "].");
  const at::Tensor codes = with_rows(a), factors = a_scales.contiguous();
  const int64_t m = a.size(0);
  const Rows out = rows_of(c, "output");
  TORCH_CHECK_VALUE(out.size == weight.n && out.count == m, "output has shape ", c.sizes(),
                    ", expected [", m, ", ", weight.n, "].");
  if (bias) {
    check_same_dtype(*bias, "bias", c, "output");
    check_shape(*bias, {weight.n}, "bias");
  }
  const at::Tensor added = bias ? bias->contiguous() : at::Tensor();
  if (m == 0) return;
  const float* scales = typed_data<float>(factors, "activation scales");
  TORCH_CHECK_VALUE(a_scales.numel() == 1 || a_scales.numel() == m, "activation scales have shape ",
                    a_scales.sizes(), ", expected one, or one per row of ", m, ".");
  const at::Tensor rows = at::empty({m, product_row_bytes(weight, a.element_size())}, at::kByte);
  Product product{};
  product.weight = &weight;
  product.dtype = dtype_of(c, "output");
  product.m = m;
  product.rows = rows.data_ptr();
  product.epilogue.c = out.data;
  product.epilogue.c_stride = out.stride;
  product.epilogue.bias = bias ? added.const_data_ptr() : nullptr;
  const QuantGivenArgs given{
      quantized.layout, codes.const_data_ptr<int8_t>(), codes.stride(0),
      scales,           a_scales.numel() == 1 ? 0 : 1,  product.quant_rows()};
  parallel_slices(m, row_grain(weight.k),
                  [=](Slice slice) { kernels().quantize_given(given, slice); });
  at::Tensor row_shift, column_shift;
  if (azp) {
    const at::Tensor& adjust = azp_adj ? *azp_adj : quantized.column_shift;
    TORCH_CHECK_VALUE(adjust.defined(), "the weight was packed without use_azp.");
    TORCH_CHECK_VALUE(azp->numel() == 1 || azp->numel() == m, "zero points have shape ",
                      azp->sizes(), ", expected one, or one per row of ", m, ".");
    TORCH_CHECK_VALUE(adjust.numel() == weight.n, "azp_adj has shape ", adjust.sizes(),
                      ", expected one per column of ", weight.n, ".");
    row_shift =
        (a_scales.reshape(-1) * azp->reshape(-1).to(at::kFloat)).neg().expand(m).contiguous();
    product.row_shift = row_shift.const_data_ptr<float>();
    column_shift = adjust.contiguous();
    product.column_shift = typed_data<float>(column_shift, "azp_adj");
  }
  run_product(product);
}

}  // namespace cpu_backend
