// What a kernel is given: pointers, sizes and strides.  Strides count elements, not bytes.
// Plain data without ownership; the caller has checked shapes, types and aliasing.
#pragma once

#include <cstdint>

#include "core/slice.h"

namespace cpu_backend {

// Element type of activations, weights and KV cache.
enum class DType : int { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };
static inline int64_t bytes_of(DType type) { return type == DType::kFloat32 ? 4 : 2; }

// A pointer to one of the storage types, passed through the type-erased kernel table.
using ConstData = const void*;
using Data = void*;

enum class Activation : int {
  kSilu,
  kGelu,       // x/2 * erfc(-x/sqrt(2))
  kGeluTanh,   // the tanh approximation; also "gelu_new" and "gelu_fast"
  kGeluQuick,  // x * sigmoid(1.702 x)
  kSigmoid,    // 1 / (1 + exp(-x))
  kRelu2,      // without a gate only: max(x, 0)^2
  kSwigluOai,  // gated only: (up + 1) * gelu_quick(gate), gate at most 7, up from -7 to 7 (gpt-oss)
  kSwigluStep,  // gated only: silu(gate), at most 7, times up from -7 to 7 (Step 3.5)
};

inline bool needs_gate(Activation kind) {
  return kind == Activation::kSwigluOai || kind == Activation::kSwigluStep;
}
inline bool may_have_gate(Activation kind) { return kind != Activation::kRelu2; }

// y = x / rms(x) * weight, or with a residual: residual += x first, and y from the sum.
struct NormArgs {
  ConstData x;
  int64_t x_stride;
  Data residual;  // null: plain norm
  int64_t residual_stride;
  ConstData weight;  // null: ones
  Data y;
  int64_t y_stride;
  int64_t hidden;
  float epsilon;
  float weight_offset;  // added to the weight: 1 where models store its difference from 1
  ConstData gate;       // null: none
  int64_t gate_stride;
  Activation gate_activation;  // kSilu or kSigmoid
  bool gate_first;             // the norm is of what the gate has left
};

// y = (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias, or of x + residual.
struct LayerNormArgs {
  ConstData x;
  int64_t x_stride;
  ConstData residual;  // null: none
  int64_t residual_stride;
  ConstData weight;  // null: ones
  ConstData bias;    // null: zeros
  Data y;            // may be x, and the residual
  int64_t y_stride;
  int64_t hidden;
  float epsilon;
};

// y[i] = the sum of sources[0..count)[i] in this order.
struct SumArgs {
  const ConstData* sources;
  int count;
  Data y;
};

// y[t] = the weighted sum of `count` rows of x; see kernels/combine.h.
struct CombineArgs {
  ConstData x;
  int64_t x_stride;
  const int32_t* places;  // [tokens, count] rows of x, negative: none
  const float* weights;   // [tokens, count]
  int64_t count;
  Data y;
  int64_t y_stride;
  int64_t size;
};

// y[r] = act(x[r][0:size]) * x[r][size:2*size] when gated, act(x[r]) otherwise.
struct ActivationArgs {
  ConstData x;
  int64_t x_stride;
  Data y;
  int64_t y_stride;
  int64_t size;  // columns of y
  Activation kind;
  bool gated;
  bool gate_second;  // mul_and_silu: the activated half is the second one
};

// Where the numbers of a tensor [tokens, heads, channels] lie; channels are dense.
struct TokenHeads {
  void* data;
  int64_t token_stride, head_stride;

  template <class T>
  T* at(int64_t token, int64_t head) const {
    return static_cast<T*>(data) + token * token_stride + head * head_stride;
  }
};

// Rotates the first rotary_dim channels (from rope_offset) of every head in place.
struct RopeArgs {
  const int64_t* positions;
  ConstData cos_sin;  // [max_position, rotary_dim]: cosines, then sines
  TokenHeads query;
  int num_heads;
  TokenHeads key;  // null: only the query
  int num_kv_heads;
  int rotary_dim;
  int rope_offset;
  bool neox;     // halves are paired (x[i], x[i + rotary_dim/2]); otherwise neighbours
  bool inverse;  // rotate back
};

// What the KV cache holds: elements of the activations' type, or codes of one byte.
enum class KvType : int {
  kActivations,  // key and value as they are
  kFp8E4M3,      // value / scale, one scale for all keys and one for all values
  kFp8E5M2,      // the same
  kInt8,         // a scale per token and head, max|x| / 127, in the page itself
};

// Paged KV cache: block b, head h starts at base + b * block_stride + h * head_stride and holds a
// key panel, then a value panel; see kernels/kv_cache.h for the interior.  Keys and values differ
// in width where values are compressed (latent attention).
struct PagedKv {
  Data base;
  int64_t block_stride;
  int64_t head_stride;
  int block_size;
  int key_dim, value_dim;
  KvType type = KvType::kActivations;
  float key_scale = 1.0f, value_scale = 1.0f;  // of fp8
};

struct WriteKvArgs {
  TokenHeads key;
  TokenHeads value;
  PagedKv cache;
  const int64_t* slots;  // per token, negative: skip
  int num_kv_heads;
};

// Where the tokens of a step are: those of request r are query_start[r], ..., the last of
// seq_lens[r] tokens that lie in the pages of row r of the block table.
struct StepPages {
  int64_t requests;
  const int32_t* query_start;  // [requests + 1]
  const int32_t* seq_lens;     // [requests], cached tokens including this step's
  const int32_t* block_table;  // [requests, block_table_stride]
  int64_t block_table_stride;
};

// Attention over the cache for one step.
struct AttendArgs {
  TokenHeads query;
  TokenHeads out;
  PagedKv cache;
  StepPages pages;
  const uint8_t* causal;  // per request, or null: all_causal holds for every request
  bool all_causal;        // else windows end in the future, too, for requests that see it
  int num_heads, num_kv_heads;
  float scale;
  float softcap;              // 0: none
  int window;                 // tokens a position sees, itself included; <= 0: all
  const float* alibi_slopes;  // [num_heads] or null
  const float* sinks;         // [num_heads] or null
  float* partials;            // see kernels/attention.h
};

// One unit of attention work: rows of one KV head of one request, over some KV partitions.
// A row is (token, head within the group): row = token * group + head.
struct AttendItem {
  int32_t request, kv_head;
  int32_t row_begin, row_count;
  int32_t part_begin, part_end;
  int32_t partial;  // index of the first partial to write, -1: finish and write the output
};

// Rows whose partitions were computed apart: combine `parts` partials in order.
struct MergeItem {
  int32_t request, kv_head;
  int32_t row_begin, row_count;
  int32_t parts, partial;
};

// Which tokens each token of a step attends to; see kernels/token_choice.h.
struct TokenChoiceArgs {
  TokenHeads query;
  int num_heads;
  ConstData weights;  // [tokens, num_heads]
  int64_t weights_stride;
  float scale;
  PagedKv cache;  // of keys alone
  StepPages pages;
  int64_t first_token;  // whose row of scores is the first
  float* scores;        // [rows, scores_stride]
  int64_t scores_stride;
  int32_t* chosen;  // [tokens, chosen_stride]
  int64_t chosen_stride;
  int64_t most;  // tokens to choose at most
};

// Latent attention over chosen tokens; see kernels/sparse_attention.h.  Block b of the cache starts
// at base + b * block_stride and has a row of key_dim numbers per token, the first value_dim of
// which are its value.
struct SparseAttendArgs {
  TokenHeads query;
  TokenHeads out;
  int num_heads;
  float scale;
  PagedKv cache;
  StepPages pages;
  const int32_t* chosen;  // [tokens, chosen_stride], ascending
  int64_t chosen_stride;
  int64_t most;
  float* partials;  // [tokens, partitions, blocks of heads]; see kernels/attention.h
};

// Some tokens of a step and the partitions of what they attend to.
struct SparseAttendItem {
  int64_t token, tokens;
  int64_t part_begin, part_end;
  bool apart;  // one token, whose partitions are merged afterwards
};

// The sequences of a step, as runs of its tokens, and where each keeps its state.  Slots are looked
// up while a kernel runs, so a recorded step follows them.
struct Sequences {
  int64_t count;
  const int32_t* starts;  // [count + 1] first tokens, or null: `length` tokens each
  int64_t length;
  const int32_t* slots;  // of each the first of a row, `slot_stride` apart; null: i has slot i
  int64_t slot_stride;
  int64_t null_slot;         // of a sequence that is none: its rows of the output become zeros
  const uint8_t* continued;  // per sequence, or null: all_continued; otherwise from zeros
  bool all_continued;
  // Of the tokens of the step before, how many sequence i has kept, one at least: it begins with
  // the state after the last of them, and leaves the one after its own token t in slot t of its
  // row.  Null or 0: it begins and ends in its first slot.
  const int32_t* accepted;
};

// y[t] = the causal convolution of every channel of x over its sequence; see
// kernels/causal_conv.h.
struct CausalConvArgs {
  ConstData x;
  int64_t x_stride;
  Data y;
  int64_t y_stride;
  int64_t tokens;  // rows of y
  int64_t channels;
  int taps;
  ConstData weight;
  int64_t weight_channel_stride, weight_tap_stride;
  ConstData bias;  // [channels] or null
  Data state;      // the last inputs, or null: sequences begin and end in this step
  int64_t state_slot_stride, state_channel_stride, state_time_stride;
  bool silu;
  Sequences sequences;
};

// Numbers of one type with any strides; null: none.
struct Numbers {
  ConstData data;
  DType type;
  int64_t token_stride, head_stride, channel_stride;
};

// A selective state-space recurrence over the sequences of a step; see kernels/state_scan.h.
struct StateScanArgs {
  Numbers x, z, dt, dt_bias, d;  // x and z of the activations' type
  const float* a;
  int64_t a_head_stride, a_channel_stride, a_state_stride;
  ConstData b, c;  // of the activations' type
  int64_t b_token_stride, b_group_stride, b_state_stride;
  int64_t c_token_stride, c_group_stride, c_state_stride;
  Data out;
  int64_t out_token_stride, out_head_stride, out_channel_stride;
  Data state;  // dense in the last dimension
  int64_t state_slot_stride, state_head_stride, state_channel_stride;
  int64_t tokens;  // rows of out
  int64_t heads, channels, groups, states;
  bool softplus;
  bool shared_steps;  // dt and a are the same for all channels of a head and all its states
  Sequences sequences;
  const int32_t* targets;  // slots that states go to, as rows, or null: the sequences' own
  int64_t target_stride;
};

// The channels [begin, end) of one head of one sequence; of the sequence after the last: the tokens
// of none.
struct StateScanItem {
  int64_t sequence, head;
  Slice channels;
};

// The gates of a gated delta net; see kernels/delta_gates.h.
struct DeltaGateArgs {
  ConstData a, b;  // [tokens, heads * decays] and [tokens, heads], dense rows
  int64_t a_stride, b_stride;
  const float* a_log;  // [heads]
  ConstData bias;      // [heads * decays], of the activations' type or fp32
  bool bias_is_float;
  float* log_decay;  // [tokens, heads * decays]
  float* beta;       // [tokens, heads]
  int64_t heads, decays;
  float beta_range;  // beta lies between 0 and this
};

// One of the two products of low-rank adapters; see kernels/lora.h.
struct LoraArgs {
  ConstData x;  // [tokens, inputs]
  int64_t x_stride;
  Data y;  // [tokens, outputs]
  int64_t y_stride;
  ConstData weights;  // [adapters][outputs][inputs], dense rows
  int64_t adapter_stride;
  const int64_t* adapters;  // [tokens]; negative: none
  int64_t inputs;
  float scale;  // of shrink
};

constexpr int64_t kDeltaColumns = 64;  // channels of values in one item of the gated delta rule

// The gated delta rule over the sequences of a step; see kernels/delta_rule.h.
struct DeltaRuleArgs {
  TokenHeads query;  // [tokens, key_heads, key_dim]
  TokenHeads key;
  TokenHeads value;        // [tokens, heads, value_dim]
  const float* log_decay;  // [tokens, heads, decays]
  const float* beta;       // [tokens, heads]
  TokenHeads out;          // [tokens, heads, value_dim]
  Data states;             // of each slot [heads, key_dim, value_dim], a head's part dense
  int64_t slot_stride, state_head_stride;
  Sequences sequences;
  int heads, key_heads;
  int64_t key_dim, value_dim;
  int64_t decays;  // of a head: 1, or one for each of its key_dim channels
  float scale;     // of queries
  float epsilon;   // of the norms of queries and keys
  bool normalize;
};

// Packs weight [n, k] (any strides) into panels; see kernels/gemm.h.
struct PackArgs {
  ConstData weight;
  int64_t n_stride, k_stride;
  int64_t n, k;
  int parts;  // of the columns, panels taken in turns; 1 or a divisor of n
  Data packed;
};

// y[i][0:k] = row ids[i] of a packed weight: an embedding table that is also the output layer.
struct UnpackArgs {
  ConstData packed;
  const int64_t* ids;  // in [0, n)
  Data y;
  int64_t y_stride;
  int64_t k;
};

// What becomes of a product, in this order: bias, then one of residual, activation and gate; and
// where it goes: c [m, n], or with a gate [m, n / 2], of the storage type or, without a gate, fp32:
// logits are compared with each other, and rounding them makes ties.
struct GemmEpilogue {
  ConstData bias;      // [n] or null
  ConstData residual;  // [m, n] or null; may be c
  int64_t residual_stride;
  bool activated;  // c = act(c)
  bool gated;      // c = act(first half of the columns) * second half; needs parts == 2
  Activation activation;
  Data c;
  int64_t c_stride;
  bool float_output;
};

struct QuantLayout;

// Activations as integers: tiles of `tile_rows` rows, the last one of fewer.  1 to
// KernelTable::quant_tile_rows.
struct QuantRows {
  Data data;  // [m][quant_row_bytes]
  int64_t m, tile_rows;
};

// c[m][n] = a[m][k] * weight^T, weight packed; all of the storage type but the weight's codes.
struct GemmArgs {
  ConstData a;
  int64_t a_stride;
  ConstData packed;
  int parts;  // as packed
  int64_t n, k;
  GemmEpilogue epilogue;
  const QuantLayout* codes;  // null: the weight is of the storage type, too

  // Where codes meet integers: these in place of a, and what is added before the epilogue,
  // row_shift[m] * column_shift[n].
  QuantRows integers;
  const float* row_shift;  // or null
  const float* column_shift;
};

// Which tokens of a row may be drawn; see kernels/top_tokens.h.
struct TokenFilter {
  int64_t k;    // <= 0: any number
  float p;      // >= 1: any mass
  float min_p;  // <= 0: any probability
};

struct SampleArgs {
  float temperature;  // < 1e-5: the largest logit, whatever the filter
  TokenFilter filter;
  uint64_t seed;
};

}  // namespace cpu_backend
