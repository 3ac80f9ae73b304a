// All kernels for one target and the table of them: compiled once per line of targets.def, with
// that line's flags and -DCPU_BACKEND_TARGET=<name>.
#include "dispatch/kernel_table.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/causal_conv.h"
#include "kernels/combine.h"
#include "kernels/copy.h"
#include "kernels/delta_gates.h"
#include "kernels/delta_rule.h"
#include "kernels/formats/integer_pack.h"
#include "kernels/gemm.h"
#include "kernels/kv_cache.h"
#include "kernels/limits.h"
#include "kernels/lora.h"
#include "kernels/norm.h"
#include "kernels/quant_rows.h"
#include "kernels/quant_weight.h"
#include "kernels/rope.h"
#include "kernels/sample.h"
#include "kernels/sparse_attention.h"
#include "kernels/state_scan.h"
#include "kernels/sum_buffers.h"
#include "kernels/token_choice.h"
#include "kernels/top_tokens.h"

namespace CPU_BACKEND_NAMESPACE {

// f(T{}) with the storage type that `dtype` names.
template <class F>
CPU_BACKEND_INLINE auto with_type(DType dtype, F f) {
  switch (dtype) {
    case DType::kBFloat16:
      return f(bf16_t{});
    case DType::kFloat16:
      return f(fp16_t{});
    case DType::kFloat32:
      break;
  }
  return f(float{});
}

// f(T{}, U{}) where the second type is fp32 or the same as the first.
template <class F>
CPU_BACKEND_INLINE void with_float_or_same(DType dtype, DType other, F f) {
  with_type(dtype, [&](auto t) {
    if (other == DType::kFloat32) {
      f(t, float{});
    } else {
      f(t, t);
    }
  });
}

// f(T{}, Code{}) with the storage type of activations and that of the cache.
template <class F>
CPU_BACKEND_INLINE void with_types(DType dtype, KvType cache, F f) {
  with_type(dtype, [&](auto t) {
    switch (cache) {
      case KvType::kFp8E4M3:
        return f(t, fp8_t{});
      case KvType::kFp8E5M2:
        return f(t, e5m2_t{});
      case KvType::kInt8:
        return f(t, int8_t{});
      case KvType::kActivations:
        break;
    }
    return f(t, t);
  });
}

const KernelTable kTable = {
    .target = CPU_BACKEND_STRING(CPU_BACKEND_TARGET),
    .panel_width = kPanelWidth,
    .rms_norm =
        [](DType type, const NormArgs& args, Slice rows) {
          with_type(type, [&](auto t) { rms_norm<decltype(t)>(args, rows); });
        },
    .activation =
        [](DType type, const ActivationArgs& args, Slice rows) {
          with_type(type, [&](auto t) { activation<decltype(t)>(args, rows); });
        },
    .rope = [](DType type, const RopeArgs& args,
               Slice tokens) { with_type(type, [&](auto t) { rope<decltype(t)>(args, tokens); }); },
    .write_kv =
        [](DType type, const WriteKvArgs& args, Slice tokens) {
          with_types(type, args.cache.type, [&](auto t, auto code) {
            write_kv<decltype(t), decltype(code)>(args, tokens);
          });
        },
    .attend_item_rows = kAttendItemRows,
    .attend_scratch_floats =
        [](const PagedKv& cache) { return attend_scratch_floats(cache, kAttendRows); },
    .attend =
        [](DType type, const AttendArgs& args, const AttendItem& item, float* scratch) {
          with_types(type, args.cache.type, [&](auto t, auto code) {
            attend<decltype(t), decltype(code)>(args, item, scratch);
          });
        },
    .merge_partials =
        [](DType type, const AttendArgs& args, const MergeItem& item, float* scratch) {
          with_type(type, [&](auto t) { merge_partials<decltype(t)>(args, item, scratch); });
        },
    .score_scratch_floats = score_scratch_floats,
    .score_tokens =
        [](DType type, const TokenChoiceArgs& args, int64_t token, Slice positions,
           float* scratch) {
          with_type(type,
                    [&](auto t) { score_tokens<decltype(t)>(args, token, positions, scratch); });
        },
    .choose_tokens = choose_tokens,
    .sharing_tokens = sharing_tokens,
    .sparse_attend_scratch_floats = sparse_attend_scratch_floats,
    .attend_chosen =
        [](DType type, const SparseAttendArgs& args, const SparseAttendItem& item, float* scratch) {
          with_type(type, [&](auto t) { attend_chosen<decltype(t)>(args, item, scratch); });
        },
    .merge_chosen =
        [](DType type, const SparseAttendArgs& args, int64_t token, int64_t row, float* scratch) {
          with_type(type, [&](auto t) { merge_chosen<decltype(t)>(args, token, row, scratch); });
        },
    .panel_count = panel_count,
    .packed_elements =
        [](DType type, int64_t n, int64_t k, int parts) {
          return with_type(type, [&](auto t) { return packed_elements<decltype(t)>(n, k, parts); });
        },
    .pack_weight =
        [](DType type, const PackArgs& args, Slice panels) {
          with_type(type, [&](auto t) { pack_weight<decltype(t)>(args, panels); });
        },
    .unpack_rows =
        [](DType type, const UnpackArgs& args, Slice rows) {
          with_type(type, [&](auto t) { unpack_rows<decltype(t)>(args, rows); });
        },
    .rows_collide =
        [](DType type, int64_t m, int64_t stride) {
          return with_type(type, [&](auto t) { return rows_collide<decltype(t)>(m, stride); });
        },
    .gemm_item_rows =
        [](DType type, int64_t m, int64_t k, bool decoded) {
          return with_type(type,
                           [&](auto t) { return gemm_item_rows<decltype(t)>(m, k, decoded); });
        },
    .gemm_scratch_floats = gemm_scratch_floats,
    .gemm =
        [](DType type, const GemmArgs& args, Slice rows, Slice panels, float* scratch) {
          with_type(type, [&](auto t) { gemm<decltype(t)>(args, rows, panels, scratch); });
        },
    .quant_tile_rows = kMostRows,
    .quant_packed_bytes = quant_packed_bytes,
    .quant_row_bytes = quant_row_bytes,
    .pack_quant = pack_quant,
    .quantize_weight =
        [](DType type, const QuantWeightArgs& args, Slice rows) {
          with_type(type, [&](auto t) { quantize_weight<decltype(t)>(args, rows); });
        },
    .quantize_rows =
        [](DType type, const QuantRowsArgs& args, Slice rows) {
          with_type(type, [&](auto t) { quantize_rows<decltype(t)>(args, rows); });
        },
    .int8_rows =
        [](DType type, const Int8RowsArgs& args, Slice rows) {
          with_type(type, [&](auto t) { int8_rows<decltype(t)>(args, rows); });
        },
    .fp8_rows =
        [](DType type, const Fp8RowsArgs& args, Slice rows) {
          with_type(type, [&](auto t) { fp8_rows<decltype(t)>(args, rows); });
        },
    .quantize_given = quantize_given,
    .sum_buffers =
        [](DType type, const SumArgs& args, Slice elements) {
          with_type(type, [&](auto t) { sum_buffers<decltype(t)>(args, elements); });
        },
    .combine =
        [](DType type, const CombineArgs& args, Slice tokens) {
          with_type(type, [&](auto t) { combine<decltype(t)>(args, tokens); });
        },
    .copy_bytes = copy_bytes,
    .argmax_row =
        [](DType type, const void* x, int64_t size) {
          return with_type(
              type, [&](auto t) { return argmax_row(static_cast<const decltype(t)*>(x), size); });
        },
    .gumbel_argmax_row =
        [](DType type, const void* x, int64_t size, uint64_t seed) {
          return with_type(type, [&](auto t) {
            return gumbel_argmax_row(static_cast<const decltype(t)*>(x), size, seed);
          });
        },
    .top_tokens_scratch = top_tokens_scratch,
    .keep_top = keep_top,
    .sample_row = sample_row,
    .read_bytes = read_bytes,
    .multiply_adds = multiply_adds,
    .conv_channels = kConvChannels,
    .causal_conv_scratch_floats = causal_conv_scratch_floats,
    .causal_conv =
        [](DType type, const CausalConvArgs& args, Slice channels, float* scratch) {
          with_type(type, [&](auto t) { causal_conv<decltype(t)>(args, channels, scratch); });
        },
    .scan_channels = kScanChannels,
    .state_scan_scratch_floats = state_scan_scratch_floats,
    .state_scan =
        [](DType type, DType state, const StateScanArgs& args, const StateScanItem& item,
           float* scratch) {
          with_type(type, [&](auto t) {
            with_type(state,
                      [&](auto s) { state_scan<decltype(t), decltype(s)>(args, item, scratch); });
          });
        },
    .delta_gates =
        [](DType type, const DeltaGateArgs& args, Slice tokens) {
          with_type(type, [&](auto t) { delta_gates<decltype(t)>(args, tokens); });
        },
    .delta_scratch_floats = delta_scratch_floats,
    .delta_rule =
        [](DType type, DType state, const DeltaRuleArgs& args, int64_t item, float* scratch) {
          with_float_or_same(type, state, [&](auto t, auto s) {
            delta_rule<decltype(t), decltype(s)>(args, item, scratch);
          });
        },
    .layer_norm =
        [](DType type, const LayerNormArgs& args, Slice rows) {
          with_type(type, [&](auto t) { layer_norm<decltype(t)>(args, rows); });
        },
    .lora_tile = kLoraTile,
    .lora_shrink =
        [](DType type, const LoraArgs& args, Slice tokens, Slice outputs) {
          with_type(type, [&](auto t) { lora_shrink<decltype(t)>(args, tokens, outputs); });
        },
    .lora_expand_scratch_floats = lora_expand_scratch_floats,
    .lora_expand =
        [](DType weights, DType y, const LoraArgs& args, Slice tokens, Slice outputs,
           float* scratch) {
          with_float_or_same(weights, y, [&](auto t, auto u) {
            lora_expand<decltype(t), decltype(u)>(args, tokens, outputs, scratch);
          });
        },
};

}  // namespace CPU_BACKEND_NAMESPACE

namespace cpu_backend {
#define CPU_BACKEND_TABLE CPU_BACKEND_JOIN(k_, CPU_BACKEND_TARGET, _table)
extern const KernelTable* const CPU_BACKEND_TABLE;
const KernelTable* const CPU_BACKEND_TABLE = &CPU_BACKEND_TARGET::kTable;
}  // namespace cpu_backend
