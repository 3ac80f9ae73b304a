// rotary_embedding under the host's signature.
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/views.h"

namespace cpu_backend {

void rotary_embedding(const at::Tensor& positions, at::Tensor& query, std::optional<at::Tensor> key,
                      int64_t head_size, const at::Tensor& cos_sin_cache, bool is_neox,
                      int64_t rope_dim_offset, bool inverse) {
  const DType dtype = dtype_of(query, "query");
  check_same_dtype(cos_sin_cache, "cos_sin_cache", query, "query");
  TORCH_CHECK_VALUE(cos_sin_cache.dim() == 2 && cos_sin_cache.is_contiguous(),
                    "cos_sin_cache must be a contiguous [max_position, rotary_dim].");
  const int64_t rotary_dim = cos_sin_cache.size(1);
  TORCH_CHECK_VALUE(rotary_dim % 2 == 0 && rope_dim_offset + rotary_dim <= head_size, "rotary_dim ",
                    rotary_dim, " at offset ", rope_dim_offset, " does not fit heads of ",
                    head_size, " channels.");
  if (!is_dense_in_last_dim(query) || (key && !is_dense_in_last_dim(*key))) {
    at::Tensor q = query.contiguous();
    std::optional<at::Tensor> k = key ? std::optional(key->contiguous()) : std::nullopt;
    rotary_embedding(positions, q, k, head_size, cos_sin_cache, is_neox, rope_dim_offset, inverse);
    query.copy_(q);
    if (key) key->copy_(*k);
    return;
  }
  const Heads q = heads_of(query, head_size, "query");
  RopeArgs args{};
  const at::Tensor dense_positions = positions.contiguous();
  args.positions = typed_data<int64_t>(dense_positions, "positions");
  TORCH_CHECK_VALUE(positions.numel() == q.tokens, "positions has ", positions.numel(),
                    " entries for ", q.tokens, " tokens.");
  args.cos_sin = cos_sin_cache.data_ptr();
  args.query = q;
  args.num_heads = q.heads;
  if (key) {
    check_same_dtype(*key, "key", query, "query");
    const Heads k = heads_of(*key, head_size, "key");
    TORCH_CHECK_VALUE(k.tokens == q.tokens, "key has ", k.tokens, " tokens, query ", q.tokens, ".");
    args.key = k;
    args.num_kv_heads = k.heads;
  }
  args.rotary_dim = static_cast<int>(rotary_dim);
  args.rope_offset = static_cast<int>(rope_dim_offset);
  args.neox = is_neox;
  args.inverse = inverse;
  parallel_slices(q.tokens, row_grain((q.heads + args.num_kv_heads) * rotary_dim),
                  [=](Slice tokens) { kernels().rope(dtype, args, tokens); });
}

}  // namespace cpu_backend
