// The host's products with weights that it packs beforehand, under its names and signatures, on
// every instruction set.
//
// Each op hands its weight to the packed linear layers and experts of this backend.  A packed
// weight is a tensor whose first product decides how it is kept (converted_weight.h); one that
// comes as it is, is packed for the one call and forgotten.  Names of instruction sets among the
// arguments are hints for the host's own kernels, and are not read.
#include "torch_ops/adapters.h"
#include "torch_ops/converted_weight.h"
#include "torch_ops/packed_linear.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

using Pack = PackedMatrices::Pack;

// The packed layers of a weight for one call.
class Layers {
 public:
  Layers(const at::Tensor& weight, bool is_packed, at::TensorList with, const Pack& pack) {
    if (is_packed) {
      layers_ = &ConvertedWeight::of(weight).packed(with, pack);
    } else {
      own_ = PackedMatrices(weight, pack);
    }
  }
  Layers(const Layers&) = delete;
  Layers& operator=(const Layers&) = delete;
  ~Layers() = default;

  at::IntArrayRef handles() const { return layers_->handles(); }
  int64_t only() const {
    TORCH_CHECK_VALUE(handles().size() == 1, "this product takes one weight, not ",
                      handles().size(), ".");
    return handles()[0];
  }

 private:
  PackedMatrices own_;
  const PackedMatrices* layers_ = &own_;
};

std::vector<at::Tensor> listed(const OptionalTensor& tensor) {
  return tensor ? std::vector<at::Tensor>{*tensor} : std::vector<at::Tensor>{};
}

// ---- kinds of weights, [n, k] -------------------------------------------------------------------

int64_t pack_codes(const at::Tensor& codes, const std::string& order, int64_t bits, int64_t add,
                   int64_t k, const at::Tensor& scales, const OptionalTensor& zeros, int64_t group,
                   const std::string& activations, int64_t parts,
                   const OptionalTensor& table = std::nullopt) {
  return pack_quantized(codes, order, bits, add, table, k, scales, zeros, zeros ? "point" : "",
                        std::nullopt, group, activations, 1.0, 0, parts);
}

// int8 codes; scales: one, or one per row.  Activations become int8 per row.
int64_t pack_int8(const at::Tensor& codes, const at::Tensor& scales, int64_t parts) {
  const int64_t n = codes.size(0), k = codes.size(1);
  TORCH_CHECK_VALUE(scales.numel() == 1 || scales.numel() == n, "weight scales have shape ",
                    scales.sizes(), ", expected one, or one per row of ", n, ".");
  return pack_codes(codes, "bytes", 8, 128, k,
                    scales.to(at::kFloat).reshape({1, -1}).expand({1, n}), std::nullopt, k,
                    "int8_token", parts);
}

// e4m3 codes; scales [n / block[0], k / block[1]], rounded up.
int64_t pack_fp8(const at::Tensor& codes, const at::Tensor& scales, at::IntArrayRef block,
                 int64_t parts) {
  const int64_t n = codes.size(0), k = codes.size(1);
  TORCH_CHECK_VALUE(block.size() == 2 && block[0] > 0 && block[1] > 0,
                    "block_size is two positive numbers, not ", block, ".");
  check_shape(scales, {ceil_div(n, block[0]), ceil_div(k, block[1])}, "scales of the blocks");
  const at::Tensor rows = scales.to(at::kFloat).repeat_interleave(block[0], 0).slice(0, 0, n);
  return pack_codes(codes, "bytes", 8, 0, k, rows.t(), std::nullopt, std::min(block[1], k), "float",
                    parts);
}

// e2m1 codes in pairs, uint8 [n, k / 2], the first one low; scales e8m0 as uint8 [n, k / 32].
int64_t pack_mxfp4(const at::Tensor& pairs, const at::Tensor& scales, int64_t parts) {
  const int64_t k = 2 * pairs.size(1);
  // Twice the numbers of e2m1 are whole.
  const at::Tensor table = at::tensor(
      {128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116}, at::kByte);
  const at::Tensor halves = at::exp2(scales.to(at::kFloat) - 128).to(at::kBFloat16);
  return pack_codes(pairs, "pairs_of_k", 4, 0, k, halves.t(), std::nullopt,
                    std::min<int64_t>(32, k), "int16", parts, table);
}

// Columns of int32 words of eight 4-bit codes each, [..., n / 8], as int32 [..., n].
at::Tensor unpacked_columns(const at::Tensor& words, bool awq) {
  const at::Tensor places = awq ? at::tensor({0, 4, 1, 5, 2, 6, 3, 7}, at::kInt)
                                : at::arange(8, at::TensorOptions().dtype(at::kInt));
  return words.unsqueeze(-1).bitwise_right_shift(places * 4).bitwise_and(15).flatten(-2);
}

// [..., groups, n] in blocks of 32 columns, [..., n / 32, groups, 32].
at::Tensor column_blocks(const at::Tensor& table) {
  return table.unflatten(-1, {table.size(-1) / 32, 32}).transpose(-3, -2).contiguous();
}

// Weights whose packing op was given all that belongs to them.
int64_t not_packed_so(const at::Tensor&, int64_t) {
  TORCH_CHECK_VALUE(false,
                    "this weight was packed by another op than that of its product: give int4 "
                    "weights to convert_weight_packed_scale_zp, fp8 weights to "
                    "float8_linear_prepack_cpu.");
}

// ---- products -----------------------------------------------------------------------------------

OptionalTensor in_type_of(const OptionalTensor& bias, const at::Tensor& x) {
  return bias ? OptionalTensor(bias->to(x.scalar_type()).contiguous()) : std::nullopt;
}

// x [tokens, k] to [tokens, n].
at::Tensor product(const at::Tensor& x, int64_t handle, const OptionalTensor& bias,
                   at::ScalarType out_type) {
  return linear(x, handle, packed_linear(handle).n, in_type_of(bias, x), out_type == at::kFloat)
      .to(out_type);
}

void product_into(const at::Tensor& out, const at::Tensor& x, int64_t handle,
                  const OptionalTensor& bias) {
  at::Tensor target = out;
  onednn_mm(target, with_rows(x), in_type_of(bias, x), at::scalar_tensor(handle, at::kLong));
}

// ---- experts ------------------------------------------------------------------------------------

// [2 * half, ...] with gates and ups in turns, as all gates and then all ups.
at::Tensor gates_first(const at::Tensor& rows) {
  return at::cat({rows.slice(0, 0, std::nullopt, 2), rows.slice(0, 1, std::nullopt, 2)});
}

// The activation between the projections, and whether the rows of the first one are in turns.
struct Gating {
  std::string activation;
  bool in_turns;

  at::Tensor rows(const at::Tensor& tensor) const {
    return in_turns ? gates_first(tensor) : tensor;
  }
  OptionalTensor bias(const OptionalTensor& bias) const {
    return bias && in_turns ? OptionalTensor(gates_first(bias->t()).t()) : bias;
  }
};

void run_experts(at::Tensor& out, const at::Tensor& x, const Layers& gate_up, const Layers& down,
                 const OptionalTensor& gate_up_bias, const OptionalTensor& down_bias,
                 const at::Tensor& topk_weights, const at::Tensor& topk_ids, const Gating& gating) {
  experts(out, with_rows(x), gate_up.handles(), down.handles(),
          in_type_of(gating.bias(gate_up_bias), x), in_type_of(down_bias, x),
          topk_weights.to(at::kFloat).contiguous(), topk_ids.to(at::kInt).contiguous(),
          gating.activation);
}

const at::Tensor& needed(const OptionalTensor& tensor, const char* name) {
  TORCH_CHECK_VALUE(tensor, name, " is missing, which these experts need.");
  return *tensor;
}

}  // namespace

// ---- packing ------------------------------------------------------------------------------------

at::Tensor convert_weight_packed(const at::Tensor& weight) { return ConvertedWeight::make(weight); }

at::Tensor convert_scale_packed(const at::Tensor& scale) { return scale.clone(); }

std::tuple<at::Tensor, at::Tensor, at::Tensor> convert_weight_packed_scale_zp(
    const at::Tensor& weight, const at::Tensor& qzeros, const at::Tensor& scales, int64_t method) {
  TORCH_CHECK_VALUE(method == 0 || method == 1, "quant_method_4bit is ", method,
                    "; 0 is AWQ and 1 is GPTQ.");
  const bool awq = method == 0;
  const int64_t k = weight.size(-2) * (awq ? 1 : 8), n = weight.size(-1) * (awq ? 8 : 1);
  const int64_t groups = scales.size(-2);
  TORCH_CHECK_VALUE(n % 32 == 0 && groups >= 1 && k % groups == 0 && scales.size(-1) == n, k,
                    " channels by ", n, " columns with scales ", scales.sizes(),
                    " are not supported: columns come in blocks of 32, channels in equal groups.");
  // What GPTQ stores is one less than the zero point.
  const at::Tensor zeros = unpacked_columns(qzeros, awq).add(awq ? 0 : 1);
  const at::Tensor points = zeros.to(scales.scalar_type());
  at::Tensor packed = ConvertedWeight::make(weight);
  ConvertedWeight::of(packed).packed({}, [&](const at::Tensor& words, int64_t i) {
    // Of experts, which may be gates and ups; to others two parts are the same weight.
    const bool several = weight.dim() == 3;
    return pack_codes(awq ? words : words.t(), awq ? "words_of_n_awq" : "words_of_k", 4, 0, k,
                      several ? scales[i] : scales, several ? points[i] : points, k / groups,
                      "int8", several ? 2 : 1);
  });
  return {packed, column_blocks(zeros.to(at::kChar)), column_blocks(scales.to(at::kFloat))};
}

std::tuple<at::Tensor, at::Tensor> float8_linear_prepack(const at::Tensor& weight,
                                                         const at::Tensor& scales) {
  TORCH_CHECK_VALUE(weight.dim() == 2 && scales.dim() == 2 && weight.size(0) % 32 == 0 &&
                        scales.size(0) == weight.size(0) && scales.size(1) >= 1 &&
                        weight.size(1) % scales.size(1) == 0,
                    "an fp8 weight ", weight.sizes(), " with scales ", scales.sizes(),
                    " is not supported: rows come in blocks of 32, each with a scale for every "
                    "equal group of channels.");
  const int64_t n = weight.size(0), k = weight.size(1), groups = scales.size(1);
  at::Tensor packed = ConvertedWeight::make(weight);
  ConvertedWeight::of(packed).packed({}, [&](const at::Tensor& codes, int64_t) {
    return pack_fp8(codes, scales, {1, k / groups}, 1);
  });
  return {packed.view({n / 32, groups, k / groups, 32}), column_blocks(scales.to(at::kFloat).t())};
}

void prepack_moe_weight(const at::Tensor& weight, at::Tensor& packed_weight, c10::string_view) {
  packed_weight.set_(ConvertedWeight::make(weight));
}

// ---- linear layers ------------------------------------------------------------------------------

void weight_packed_linear(at::Tensor& out, const at::Tensor& mat1, const at::Tensor& mat2,
                          const OptionalTensor& bias, bool is_vnni) {
  const Layers layers(mat2, is_vnni, {},
                      [](const at::Tensor& matrix, int64_t) { return pack_linear(matrix, 1); });
  product_into(out, mat1, layers.only(), bias);
}

void bmm(at::Tensor& out, const at::Tensor& mat1, const at::Tensor& mat2, bool is_vnni,
         const OptionalTensor& scale) {
  const at::ScalarType type = mat1.scalar_type();
  const Layers layers(mat2, is_vnni, listed(scale), [&](const at::Tensor& matrix, int64_t) {
    return pack_linear(scale ? (matrix.to(at::kFloat) * *scale).to(type) : matrix, 1);
  });
  at::Tensor heads_inside = out.transpose(0, 1);
  linear_heads(heads_inside, with_heads(mat1.transpose(0, 1)), layers.handles());
}

at::Tensor int8_scaled_mm_with_quant(const at::Tensor& mat1, const at::Tensor& mat2,
                                     const at::Tensor& scales2, const OptionalTensor& bias,
                                     at::ScalarType out_dtype, bool is_vnni) {
  const Layers layers(mat2, is_vnni, scales2, [&](const at::Tensor& codes, int64_t) {
    return pack_int8(codes, scales2, 1);
  });
  return product(mat1, layers.only(), bias, out_dtype);
}

at::Tensor fp8_scaled_mm(const at::Tensor& mat1, const at::Tensor& mat2, const at::Tensor& scales2,
                         at::IntArrayRef block_size, const OptionalTensor& bias,
                         at::ScalarType out_dtype, bool is_vnni) {
  const Layers layers(mat2, is_vnni, scales2, [&](const at::Tensor& codes, int64_t) {
    return pack_fp8(codes, scales2, block_size, 1);
  });
  return product(mat1, layers.only(), bias, out_dtype);
}

at::Tensor fp8_scaled_mm_with_quant(const at::Tensor& act, const OptionalTensor& act_scales,
                                    bool channelwise, const at::Tensor& weight, const at::Tensor&,
                                    const OptionalTensor& bias, at::ScalarType output_dtype) {
  const Layers layers(weight, true, {}, not_packed_so);
  const auto [codes, scales] = quantize_fp8e4m3(act.flatten(0, -2), channelwise, act_scales);
  at::Tensor out = product(codes.to(at::kFloat), layers.only(), std::nullopt, at::kFloat);
  out.mul_(scales.unsqueeze(-1));
  if (bias) out.add_(*bias);
  return out.to(output_dtype);
}

at::Tensor int4_scaled_mm(const at::Tensor& x, const at::Tensor& w, const at::Tensor&,
                          const at::Tensor&, const OptionalTensor& bias) {
  return product(x, Layers(w, true, {}, not_packed_so).only(), bias, x.scalar_type());
}

void gemm_wna16(const at::Tensor& input, const at::Tensor& q_weight, at::Tensor& output,
                const at::Tensor& scales, const OptionalTensor& zeros, const OptionalTensor& bias,
                int64_t pack_factor, c10::string_view) {
  TORCH_CHECK_VALUE(pack_factor == 8, "pack_factor is ", pack_factor,
                    "; weights have 4 bits, eight to a word.");
  const int64_t k = input.size(-1), n = scales.size(1);
  TORCH_CHECK_VALUE(k % scales.size(0) == 0, k, " channels do not fall into ", scales.size(0),
                    " equal groups.");
  check_shape(q_weight, {n / 16, 2 * k}, "q_weight");
  const at::Tensor words = q_weight.reshape({n / 16, k, 2}).transpose(0, 1).reshape({k, n / 8});
  OptionalTensor points;
  if (zeros) points = unpacked_columns(*zeros, false).to(scales.scalar_type());
  const Layers layers(words, false, {}, [&](const at::Tensor& codes, int64_t) {
    return pack_codes(codes, "words_of_n", 4, 0, k, scales, points, k / scales.size(0), "int16", 1);
  });
  product_into(output, input, layers.only(), bias);
}

// ---- experts ------------------------------------------------------------------------------------

void cpu_fused_moe(at::Tensor& output, const at::Tensor& input, const at::Tensor& w13,
                   const at::Tensor& w2, const OptionalTensor& w13_bias,
                   const OptionalTensor& w2_bias, const at::Tensor& topk_weights,
                   const at::Tensor& topk_id, bool skip_weighted, c10::string_view act,
                   c10::string_view) {
  const Gating gating{std::string(act), act == "swigluoai"};
  const Layers gate_up(w13, true, {}, [&](const at::Tensor& matrix, int64_t) {
    return pack_linear(gating.rows(matrix), 2);
  });
  const Layers down(w2, true, {},
                    [](const at::Tensor& matrix, int64_t) { return pack_linear(matrix, 1); });
  run_experts(output, input, gate_up, down, w13_bias, w2_bias,
              skip_weighted ? at::ones_like(topk_weights) : topk_weights, topk_id, gating);
}

void fused_experts(at::Tensor& out, const at::Tensor& hidden_states, const at::Tensor& w1,
                   const at::Tensor& w2, const at::Tensor& topk_weights, const at::Tensor& topk_ids,
                   int64_t method, const OptionalTensor& w1_scale, const OptionalTensor& w2_scale,
                   const OptionalTensor&, const OptionalTensor&, const OptionalTensor&,
                   at::OptionalIntArrayRef block_size, const OptionalTensor& w1_bias,
                   const OptionalTensor& w2_bias, std::optional<double> alpha,
                   std::optional<double> limit, bool is_vnni) {
  enum Method { kUnquantized, kInt8, kFp8, kInt4, kMxfp4, kFp8Activations };
  TORCH_CHECK_NOT_IMPLEMENTED(
      method >= kUnquantized && method <= kMxfp4, "moe_comp_method ", method,
      " is not supported: fp8 activations need AMX-FP8, which "
      "cpu_has_amx_fp8() denies; 0 to 4 are unquantized, int8, fp8 weights, "
      "int4 and MXFP4.");
  TORCH_CHECK_NOT_IMPLEMENTED(!alpha || (*alpha == 1.702 && limit == 7.0 && method != kInt4),
                              "experts with alpha ", alpha.value_or(0), " and limit ",
                              limit.value_or(0),
                              " are not supported: 1.702 and 7 are, and not of int4 weights.");
  const Gating gating{alpha ? "swigluoai" : "silu", alpha.has_value()};
  // Gates and ups in turns have their scales in turns.
  const auto pack_as = [&](const OptionalTensor& scales, int parts, const char* name) -> Pack {
    return [&, parts, name](const at::Tensor& matrix, int64_t i) -> int64_t {
      const auto rows = [&](const at::Tensor& tensor) {
        return parts == 2 ? gating.rows(tensor) : tensor;
      };
      if (method == kUnquantized) return pack_linear(rows(matrix), parts);
      if (method == kInt4) return not_packed_so(matrix, i);
      const at::Tensor scale = needed(scales, name)[i];
      if (method == kInt8) return pack_int8(rows(matrix), rows(scale.reshape({-1})), parts);
      if (method == kMxfp4) return pack_mxfp4(rows(matrix), rows(scale), parts);
      TORCH_CHECK_VALUE(block_size, "block_size is missing, which fp8 experts need.");
      TORCH_CHECK_NOT_IMPLEMENTED(!gating.in_turns,
                                  "fp8 blocks of gates and ups in turns are not supported.");
      return pack_fp8(matrix, scale, *block_size, parts);
    };
  };
  // int4 weights were packed with their scales.
  const auto with = [&](const OptionalTensor& scale) {
    return method == kInt4 ? std::vector<at::Tensor>{} : listed(scale);
  };
  const Layers gate_up(w1, is_vnni, with(w1_scale), pack_as(w1_scale, 2, "w1_scale"));
  const Layers down(w2, is_vnni, with(w2_scale), pack_as(w2_scale, 1, "w2_scale"));
  run_experts(out, hidden_states, gate_up, down, w1_bias, w2_bias, topk_weights, topk_ids, gating);
}

at::Tensor dynamic_4bit_int_moe(const at::Tensor& x, const at::Tensor& topk_ids,
                                const at::Tensor& topk_weights, const at::Tensor& w13_packed,
                                const at::Tensor& w2_packed, int64_t hidden_size,
                                int64_t intermediate_size, int64_t group_size,
                                bool apply_router_weight_on_input, int64_t activation_kind) {
  enum Kind { kSwiglu, kSwigluOai, kSilu };
  TORCH_CHECK_VALUE(activation_kind >= kSwiglu && activation_kind <= kSilu, "activation_kind is ",
                    activation_kind, "; 0 and 2 are SiLU and 1 is SwiGLU-OAI.");
  // The weights are in an order that torch alone knows (aten::_dyn_quant_pack_4bit_weight).
  const auto mm = [&](const at::Tensor& rows, const at::Tensor& weight, int64_t n) {
    const int64_t k = rows.size(1);
    return at::_dyn_quant_matmul_4bit(rows, weight, group_size == -1 ? k : group_size, k, n);
  };
  at::Tensor out = at::zeros({x.size(0), hidden_size}, at::kFloat);
  for (int64_t e = 0; e < w13_packed.size(0); ++e) {
    const at::Tensor places = topk_ids.eq(e).nonzero();
    if (places.size(0) == 0) continue;
    const at::Tensor tokens = places.select(1, 0);
    const at::Tensor weights =
        topk_weights.index({tokens, places.select(1, 1)}).to(at::kFloat).unsqueeze(1);
    at::Tensor rows = x.index_select(0, tokens).to(at::kFloat);
    if (apply_router_weight_on_input) rows.mul_(weights);
    at::Tensor hidden = at::empty({rows.size(0), intermediate_size}, at::kFloat);
    activation(hidden, mm(rows, w13_packed[e], 2 * intermediate_size),
               activation_kind == kSwigluOai ? Activation::kSwigluOai : Activation::kSilu,
               Gate::kFirst);
    at::Tensor results = mm(hidden, w2_packed[e], hidden_size);
    if (!apply_router_weight_on_input) results.mul_(weights);
    out.index_add_(0, tokens, results);
  }
  return out.to(x.scalar_type());
}

}  // namespace cpu_backend
