// KV cache writes and paged attention under the host's signatures.
//
// The scheduler metadata is this project's attention plan (core/attention_plan.h), serialized:
// int32 [magic, items, merges, partials], then the items, then the merges, then room for the
// partials themselves, which every layer of the step uses in turn.
#include <cmath>
#include <cstring>

#include "core/attention_plan.h"
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/step_places.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

constexpr int32_t kPlanMagic = 0x41504c4e;
constexpr int kPlanHeader = 4;

struct Plan {
  int64_t num_items, num_merges, partials;
  const AttendItem* items;
  const MergeItem* merges;
  float* workspace;
};

Plan plan_of(const StepTensor& metadata) {
  auto* header = metadata.data<int32_t>();
  auto* items = reinterpret_cast<AttendItem*>(header + kPlanHeader);
  auto* merges = reinterpret_cast<MergeItem*>(items + header[1]);
  auto* workspace = reinterpret_cast<float*>(merges + header[2]);
  return {header[1], header[2], header[3], items, merges, workspace};
}

int64_t partial_floats(int64_t value_dim) { return kAttendRows * (value_dim + 2); }

KvType kv_type(const std::string& kv_cache_dtype) {
  if (kv_cache_dtype == "fp8" || kv_cache_dtype == "fp8_e4m3") return KvType::kFp8E4M3;
  if (kv_cache_dtype == "fp8_e5m2") return KvType::kFp8E5M2;
  if (kv_cache_dtype == "int8_per_token_head") return KvType::kInt8;
  TORCH_CHECK_NOT_IMPLEMENTED(kv_cache_dtype == "auto" || kv_cache_dtype == "float32" ||
                                  kv_cache_dtype == "bfloat16" || kv_cache_dtype == "float16",
                              "--kv-cache-dtype ", kv_cache_dtype,
                              " is not supported: choose auto, fp8, fp8_e4m3, fp8_e5m2 or "
                              "int8_per_token_head.");
  return KvType::kActivations;
}

float checked_scale(double scale, const char* name) {
  TORCH_CHECK_VALUE(scale > 0.0 && std::isfinite(static_cast<float>(scale)), name, " is ", scale,
                    "; the scale of an fp8 cache must be a positive number.");
  return static_cast<float>(scale);
}

// Codes come as bytes of any of torch's types; other caches have the activations' type.
void check_cache_dtype(const at::Tensor& cache, KvType type, const at::Tensor& activations,
                       const char* name) {
  if (type == KvType::kActivations) {
    check_same_dtype(cache, "key_cache", activations, name);
  } else {
    TORCH_CHECK_TYPE(cache.itemsize() == 1, "key_cache has dtype ", cache.scalar_type(),
                     "; quantized caches have one byte per element.");
  }
}

constexpr int64_t kWidest = 1024;

void check_head_size(int64_t channels) {
  TORCH_CHECK_VALUE(channels % 16 == 0 && channels <= kWidest, "head size ", channels,
                    " is not supported: multiples of 16 up to ", kWidest, " are.");
}

// key_cache and value_cache are the two parts of each page: [blocks, heads, block_size, channels],
// where values may have other channels than keys.  With int8 codes the scales of a page follow its
// values, outside both.
PagedKv cache_view(const at::Tensor& key_cache, const at::Tensor& value_cache,
                   const std::string& kv_cache_dtype, double key_scale, double value_scale) {
  const auto alike = [&](int64_t d) {  // a dimension of size one has any stride
    return key_cache.size(d) == 1 || key_cache.stride(d) == value_cache.stride(d);
  };
  TORCH_CHECK_VALUE(key_cache.dim() == 4 && value_cache.dim() == 4 &&
                        key_cache.sizes().slice(0, 3) == value_cache.sizes().slice(0, 3) &&
                        alike(0) && alike(1),
                    "key and value cache must be the two parts of pages [blocks, kv_heads, "
                    "block_size, channels].");
  const int64_t block_size = key_cache.size(2);
  const int64_t key_dim = key_cache.size(3);
  const int64_t value_dim = value_cache.size(3);
  TORCH_CHECK_VALUE(block_size % 16 == 0, "block size ", block_size,
                    " is not supported: choose --block-size as a multiple of 16.");
  const KvType type = kv_type(kv_cache_dtype);
  check_head_size(key_dim);
  check_head_size(value_dim);
  const auto* key = static_cast<const char*>(key_cache.data_ptr());
  const auto* value = static_cast<const char*>(value_cache.data_ptr());
  TORCH_CHECK_VALUE(
      key_cache.stride(3) == 1 && key_cache.stride(2) == key_dim && value_cache.stride(3) == 1 &&
          value_cache.stride(2) == value_dim &&
          (key_cache.numel() == 0 ||
           value - key == block_size * key_dim * static_cast<int64_t>(key_cache.itemsize())),
      "the values of a cache page must follow its keys.");
  PagedKv cache{key_cache.data_ptr(),
                key_cache.stride(0),
                key_cache.stride(1),
                static_cast<int>(block_size),
                static_cast<int>(key_dim),
                static_cast<int>(value_dim),
                type};
  if (cache.type == KvType::kInt8) {
    const int64_t page =
        block_size * (key_dim + value_dim + 2 * static_cast<int64_t>(sizeof(float)));
    const auto* storage = static_cast<const char*>(key_cache.storage().data());
    const int64_t pages_end = key - storage + (key_cache.size(0) - 1) * cache.block_stride +
                              (key_cache.size(1) - 1) * cache.head_stride + page;
    TORCH_CHECK_VALUE(
        key_cache.numel() == 0 ||
            ((key_cache.size(1) == 1 || cache.head_stride >= page) &&
             cache.head_stride % sizeof(float) == 0 && cache.block_stride % sizeof(float) == 0 &&
             reinterpret_cast<uintptr_t>(key) % sizeof(float) == 0 &&
             pages_end <= static_cast<int64_t>(key_cache.storage().nbytes())),
        "an int8 cache page must have room for two fp32 scales per token behind its "
        "values.");
  } else if (cache.type != KvType::kActivations) {
    cache.key_scale = checked_scale(key_scale, "k_scale");
    cache.value_scale = checked_scale(value_scale, "v_scale");
  }
  return cache;
}

const uint8_t* bool_data(const OptionalTensor& tensor, const char* name) {
  if (!tensor) return nullptr;
  return reinterpret_cast<const uint8_t*>(typed_data<bool>(*tensor, name));
}

// As fp32 per head; `converted` keeps the data alive.
const float* head_values(const OptionalTensor& tensor, int64_t heads, const char* name,
                         at::Tensor& converted) {
  if (!tensor) return nullptr;
  check_shape(*tensor, {heads}, name);
  converted = tensor->to(at::kFloat).contiguous();
  return converted.const_data_ptr<float>();
}

}  // namespace

at::Tensor get_scheduler_metadata(int64_t num_req, int64_t num_heads_q, int64_t num_heads_kv,
                                  int64_t head_dim, const at::Tensor& seq_lens, at::ScalarType,
                                  const at::Tensor& query_start_loc, bool causal,
                                  int64_t window_size, const std::string&, bool enable_kv_split,
                                  const OptionalTensor& dynamic_causal,
                                  const std::string& kv_cache_dtype) {
  kv_type(kv_cache_dtype);
  TORCH_CHECK_VALUE(num_heads_kv > 0 && num_heads_q % num_heads_kv == 0, num_heads_q,
                    " query heads cannot share ", num_heads_kv, " KV heads evenly.");
  TORCH_CHECK_VALUE(seq_lens.numel() >= num_req && query_start_loc.numel() > num_req,
                    "seq_lens and query_start_loc are too short for ", num_req, " requests.");
  const AttentionShape shape{static_cast<int>(num_heads_q),
                             static_cast<int>(num_heads_kv),
                             typed_data<int32_t>(query_start_loc, "query_start_loc"),
                             typed_data<int32_t>(seq_lens, "seq_lens"),
                             static_cast<int>(num_req),
                             causal,
                             bool_data(dynamic_causal, "dynamic_causal"),
                             static_cast<int>(window_size),
                             kernels().attend_item_rows};
  const AttentionPlan plan = plan_attention(shape, enable_kv_split ? at::get_num_threads() : 1);
  const int64_t items_bytes = plan.items.size() * sizeof(AttendItem);
  const int64_t merges_bytes = plan.merges.size() * sizeof(MergeItem);
  const int64_t header_bytes = kPlanHeader * static_cast<int64_t>(sizeof(int32_t));
  const int64_t workspace_bytes =
      plan.partials * partial_floats(head_dim) * static_cast<int64_t>(sizeof(float));
  at::Tensor metadata =
      at::empty({header_bytes + items_bytes + merges_bytes + workspace_bytes}, at::kChar);
  auto* out = static_cast<char*>(metadata.data_ptr());
  const int32_t header[kPlanHeader] = {kPlanMagic, static_cast<int32_t>(plan.items.size()),
                                       static_cast<int32_t>(plan.merges.size()), plan.partials};
  std::memcpy(out, header, sizeof header);
  std::memcpy(out + sizeof header, plan.items.data(), items_bytes);
  std::memcpy(out + sizeof header + items_bytes, plan.merges.data(), merges_bytes);
  return metadata;
}

void reshape_and_cache(const at::Tensor& key, const at::Tensor& value, at::Tensor& key_cache,
                       at::Tensor& value_cache, const at::Tensor& slot_mapping, const std::string&,
                       double k_scale, double v_scale, const std::string& kv_cache_dtype) {
  const DType dtype = dtype_of(key, "key");
  check_same_dtype(value, "value", key, "key");
  const PagedKv cache = cache_view(key_cache, value_cache, kv_cache_dtype, k_scale, v_scale);
  check_cache_dtype(key_cache, cache.type, key, "key");
  const at::Tensor keys = with_heads(key), values = with_heads(value);
  const Heads k = heads_of(keys, cache.key_dim, "key");
  const Heads v = heads_of(values, cache.value_dim, "value");
  const int64_t tokens = slot_mapping.numel();
  TORCH_CHECK_VALUE(k.tokens >= tokens && v.tokens >= tokens, "slot_mapping has ", tokens,
                    " entries for ", k.tokens, " keys and ", v.tokens, " values.");
  TORCH_CHECK_VALUE(k.heads == key_cache.size(1) && v.heads == k.heads, "the cache holds ",
                    key_cache.size(1), " KV heads, key has ", k.heads, ".");
  typed_data<int64_t>(slot_mapping, "slot_mapping");
  const auto write = [=, slots = StepTensor(slot_mapping)](Slice slice) {
    const WriteKvArgs args{k, v, cache, slots.data<int64_t>(), k.heads};
    kernels().write_kv(dtype, args, slice);
  };
  parallel_slices(tokens, row_grain(8 * k.heads * cache.key_dim), write);
}

void attention_with_kv_cache(const at::Tensor& query, const at::Tensor& key_cache,
                             const at::Tensor& value_cache, at::Tensor& output,
                             const at::Tensor& query_start_loc, const at::Tensor& seq_lens,
                             double scale, bool causal, const OptionalTensor& alibi_slopes,
                             int64_t sliding_window_size, const at::Tensor& block_table,
                             double softcap, const at::Tensor& scheduler_metadata,
                             const OptionalTensor& s_aux, const OptionalTensor& dynamic_causal,
                             double k_scale, double v_scale, const std::string& kv_cache_dtype) {
  const DType dtype = dtype_of(query, "query");
  const PagedKv cache = cache_view(key_cache, value_cache, kv_cache_dtype, k_scale, v_scale);
  check_cache_dtype(key_cache, cache.type, query, "query");
  check_same_dtype(output, "output", query, "query");
  const at::Tensor queries = with_heads(query);
  const Heads q = heads_of(queries, cache.key_dim, "query");
  const Heads out = heads_of(output, cache.value_dim, "output");
  TORCH_CHECK_VALUE(out.tokens >= q.tokens && out.heads == q.heads, "output has shape ",
                    output.sizes(), ", which does not fit the query ", query.sizes(), ".");
  TORCH_CHECK_VALUE(q.heads % key_cache.size(1) == 0, q.heads, " query heads cannot share ",
                    key_cache.size(1), " KV heads evenly.");
  const StepPlaces places(query_start_loc, seq_lens, block_table);
  TORCH_CHECK_VALUE(
      scheduler_metadata.is_contiguous() && scheduler_metadata.numel() >= kPlanHeader * 4,
      "scheduler_metadata is not a plan of get_scheduler_metadata.");
  TORCH_CHECK_VALUE(*static_cast<const int32_t*>(scheduler_metadata.const_data_ptr()) == kPlanMagic,
                    "scheduler_metadata is not a plan of get_scheduler_metadata.");
  const StepTensor plan(scheduler_metadata);
  const Plan first = plan_of(plan);
  TORCH_CHECK_VALUE(reinterpret_cast<const char*>(
                        first.workspace + first.partials * partial_floats(cache.value_dim)) <=
                        static_cast<const char*>(scheduler_metadata.const_data_ptr()) +
                            scheduler_metadata.nbytes(),
                    "scheduler_metadata was made for another head size than ", cache.value_dim,
                    ".");

  at::Tensor slopes, sinks;
  AttendArgs args{};
  args.query = q;
  args.out = out;
  args.cache = cache;
  args.causal = bool_data(dynamic_causal, "dynamic_causal");
  args.all_causal = causal;
  args.num_heads = q.heads;
  args.num_kv_heads = static_cast<int>(key_cache.size(1));
  args.scale = static_cast<float>(scale);
  args.softcap = static_cast<float>(softcap);
  args.window = static_cast<int>(sliding_window_size);
  args.alibi_slopes = head_values(alibi_slopes, q.heads, "alibi_slopes", slopes);
  args.sinks = head_values(s_aux, q.heads, "s_aux", sinks);
  const auto step_args = [=] {
    AttendArgs step = args;
    step.pages = places.get();
    step.partials = plan_of(plan).workspace;
    return step;
  };
  const KernelTable& table = kernels();
  const int64_t scratch = table.attend_scratch_floats(cache);
  parallel_items([=] { return plan_of(plan).num_items; }, scratch,
                 [=, attend = table.attend](int64_t i, float* buffer) {
                   attend(dtype, step_args(), plan_of(plan).items[i], buffer);
                 });
  parallel_items([=] { return plan_of(plan).num_merges; }, scratch,
                 [=, merge = table.merge_partials](int64_t i, float* buffer) {
                   merge(dtype, step_args(), plan_of(plan).merges[i], buffer);
                 });
}

namespace {

// Index tensors come as int32 from this project's runner and as int64 from the host's adapters.
template <class Index>
void map_slots(const at::Tensor& query_start_loc, const at::Tensor& position_of,
               const at::Tensor& block_table, const at::Tensor& slot_mapping, int64_t block_size) {
  const auto* starts = query_start_loc.const_data_ptr<Index>();
  const auto* blocks = block_table.const_data_ptr<Index>();
  const auto* positions = position_of.const_data_ptr<int64_t>();
  auto* slots = slot_mapping.data_ptr<int64_t>();
  const int64_t tokens = query_start_loc.numel() > 0 ? starts[query_start_loc.numel() - 1] : 0;
  TORCH_CHECK_VALUE(position_of.numel() >= tokens && slot_mapping.numel() >= tokens,
                    position_of.numel(), " positions and ", slot_mapping.numel(), " slots for ",
                    tokens, " tokens.");
  for (int64_t request = 0; request + 1 < query_start_loc.numel(); ++request) {
    const Index* row = blocks + request * block_table.stride(0);
    for (int64_t t = starts[request]; t < starts[request + 1]; ++t)
      slots[t] = row[positions[t] / block_size] * block_size + positions[t] % block_size;
  }
}

}  // namespace

void compute_slot_mapping(const at::Tensor& query_start_loc, const at::Tensor& positions,
                          const at::Tensor& block_table, at::Tensor& slot_mapping,
                          int64_t block_size) {
  TORCH_CHECK_VALUE(block_size > 0, "block_size must be positive.");
  TORCH_CHECK_TYPE(query_start_loc.scalar_type() == block_table.scalar_type(),
                   "query_start_loc and block_table must have one integer type.");
  TORCH_CHECK_TYPE(block_table.scalar_type() == at::kInt || block_table.scalar_type() == at::kLong,
                   "query_start_loc and block_table must be int32 or int64.");
  TORCH_CHECK_VALUE(query_start_loc.is_contiguous(), "query_start_loc must be contiguous.");
  check_dense_last_dim(block_table, "block_table");
  typed_data<int64_t>(positions, "positions");
  typed_data<int64_t>(slot_mapping, "slot_mapping");
  if (block_table.scalar_type() == at::kInt) {
    map_slots<int32_t>(query_start_loc, positions, block_table, slot_mapping, block_size);
  } else {
    map_slots<int64_t>(query_start_loc, positions, block_table, slot_mapping, block_size);
  }
}

}  // namespace cpu_backend
