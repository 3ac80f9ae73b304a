// What a kernel is given: pointers, sizes and strides.  Strides count elements, not bytes.
// Plain data without ownership; the caller has checked shapes, types and aliasing.
#pragma once

#include <cstdint>

namespace cpu_backend {

// Element type of activations, weights and KV cache.
enum class DType : int { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

// A pointer to one of the storage types, passed through the type-erased kernel table.
using ConstData = const void*;
using Data = void*;

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

enum class Activation : int {
  kSilu,
  kGelu,       // x/2 * erfc(-x/sqrt(2))
  kGeluTanh,   // the tanh approximation; also "gelu_new" and "gelu_fast"
  kGeluQuick,  // x * sigmoid(1.702 x)
  kSigmoid,    // 1 / (1 + exp(-x))
  kSwigluOai,  // gated only: (up + 1) * gelu_quick(gate), gate at most 7, up from -7 to 7 (gpt-oss)
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

// Rotates the first rotary_dim channels (from rope_offset) of every head in place.
struct RopeArgs {
  const int64_t* positions;
  ConstData cos_sin;  // [max_position, rotary_dim]: cosines, then sines
  Data query;
  int64_t query_token_stride, query_head_stride;
  int num_heads;
  Data key;  // null: only the query
  int64_t key_token_stride, key_head_stride;
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
  ConstData key;
  int64_t key_token_stride, key_head_stride;
  ConstData value;
  int64_t value_token_stride, value_head_stride;
  PagedKv cache;
  const int64_t* slots;  // per token, negative: skip
  int num_kv_heads;
};

// Attention over the cache for one step.
struct AttendArgs {
  ConstData query;
  int64_t query_token_stride, query_head_stride;
  Data out;
  int64_t out_token_stride, out_head_stride;
  PagedKv cache;
  const int32_t* block_table;  // [requests, block_table_stride]
  int64_t block_table_stride;
  const int32_t* query_start;  // [requests + 1]
  const int32_t* seq_lens;     // [requests], cached tokens including this step's
  const uint8_t* causal;       // per request, or null: all_causal holds for every request
  bool all_causal;
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

// What becomes of a product, in this order: bias, then one of residual and activation.
struct GemmEpilogue {
  ConstData bias;      // [n] or null
  ConstData residual;  // [m, n] or null; may be c
  int64_t residual_stride;
  bool gated;  // c = act(first half of the columns) * second half; needs parts == 2
  Activation activation;
};

// c[m][n] = a[m][k] * weight^T, weight packed; all of the storage type, c also fp32: logits are
// compared with each other, and rounding them makes ties.
struct GemmArgs {
  ConstData a;
  int64_t a_stride;
  ConstData packed;
  int parts;  // as packed
  Data c;
  int64_t c_stride;
  bool float_output;
  int64_t m, n, k;
  GemmEpilogue epilogue;
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
