// Everything the layers above may ask of a target: one table of functions per instruction set.
//
// The first argument of each entry is the storage type of activations, weights or cache; the rest
// is what the kernel of the same name in kernels/ documents.
#pragma once

#include "core/quant.h"
#include "core/slice.h"
#include "core/view.h"

namespace cpu_backend {

struct KernelTable {
  const char* target;
  int panel_width;  // columns of one packed weight panel

  void (*rms_norm)(DType, const NormArgs&, Slice rows);
  void (*activation)(DType, const ActivationArgs&, Slice rows);
  void (*rope)(DType, const RopeArgs&, Slice tokens);
  void (*write_kv)(DType, const WriteKvArgs&, Slice tokens);

  int attend_item_rows;
  int64_t (*attend_scratch_floats)(const PagedKv& cache);
  void (*attend)(DType, const AttendArgs&, const AttendItem&, float* scratch);
  void (*merge_partials)(DType, const AttendArgs&, const MergeItem&, float* scratch);

  int64_t (*score_scratch_floats)(const PagedKv& cache);
  void (*score_tokens)(DType, const TokenChoiceArgs&, int64_t token, Slice positions,
                       float* scratch);
  void (*choose_tokens)(const TokenChoiceArgs&, int64_t token);
  int64_t (*sharing_tokens)(int64_t num_heads);  // of one item of attend_chosen at most
  int64_t (*sparse_attend_scratch_floats)(const PagedKv& cache, int64_t num_heads);
  void (*attend_chosen)(DType, const SparseAttendArgs&, const SparseAttendItem&, float* scratch);
  void (*merge_chosen)(DType, const SparseAttendArgs&, int64_t token, int64_t row, float* scratch);

  int64_t (*panel_count)(int64_t n, int parts);
  int64_t (*packed_elements)(DType, int64_t n, int64_t k, int parts);
  void (*pack_weight)(DType, const PackArgs&, Slice panels);
  void (*unpack_rows)(DType, const UnpackArgs&, Slice rows);
  bool (*rows_collide)(DType, int64_t m, int64_t stride);
  int64_t (*gemm_item_rows)(DType, int64_t m, int64_t k, bool decoded);
  int64_t (*gemm_scratch_floats)(const QuantLayout* codes);
  void (*gemm)(DType, const GemmArgs&, Slice rows, Slice panels, float* scratch);

  int64_t quant_tile_rows;  // at most
  int64_t (*quant_packed_bytes)(const QuantLayout&);
  int64_t (*quant_row_bytes)(const QuantLayout&);
  void (*pack_quant)(const QuantPackArgs&, Slice panels);
  void (*quantize_weight)(DType, const QuantWeightArgs&, Slice rows);
  void (*quantize_rows)(DType, const QuantRowsArgs&, Slice rows);
  void (*int8_rows)(DType, const Int8RowsArgs&, Slice rows);
  void (*fp8_rows)(DType, const Fp8RowsArgs&, Slice rows);
  void (*quantize_given)(const QuantGivenArgs&, Slice rows);
  void (*sum_buffers)(DType, const SumArgs&, Slice elements);
  void (*combine)(DType, const CombineArgs&, Slice tokens);
  void (*copy_bytes)(const char* from, char* to, int64_t bytes);

  int64_t (*argmax_row)(DType, const void* x, int64_t size);
  int64_t (*gumbel_argmax_row)(DType, const void* x, int64_t size, uint64_t seed);
  int64_t (*top_tokens_scratch)(int64_t size);
  void (*keep_top)(float* x, int64_t size, const TokenFilter&, float* scratch);
  int64_t (*sample_row)(float* x, int64_t size, const SampleArgs&, float* scratch);

  uint32_t (*read_bytes)(const void* data, int64_t bytes);
  int64_t (*multiply_adds)(int64_t steps, float factor, float* result);

  int64_t conv_channels;  // of one call at most
  int64_t (*causal_conv_scratch_floats)(int taps);
  void (*causal_conv)(DType, const CausalConvArgs&, Slice channels, float* scratch);
  int64_t scan_channels;  // of one item at most
  int64_t (*state_scan_scratch_floats)(int64_t states);
  void (*state_scan)(DType, DType state, const StateScanArgs&, const StateScanItem&,
                     float* scratch);
  void (*delta_gates)(DType, const DeltaGateArgs&, Slice tokens);
  int64_t (*delta_scratch_floats)(int64_t key_dim, int64_t decays);
  void (*delta_rule)(DType, DType state, const DeltaRuleArgs&, int64_t item, float* scratch);
  void (*layer_norm)(DType, const LayerNormArgs&, Slice rows);
  int64_t lora_tile;  // outputs of lora_shrink at once
  void (*lora_shrink)(DType, const LoraArgs&, Slice tokens, Slice outputs);
  int64_t (*lora_expand_scratch_floats)(int64_t rank);
  void (*lora_expand)(DType, DType y, const LoraArgs&, Slice tokens, Slice outputs, float* scratch);
};

}  // namespace cpu_backend
