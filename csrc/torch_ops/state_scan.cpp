// The recurrence of Mamba and Mamba-2: one kernel under the names that the host has for prompts and
// for single tokens, and one for a whole step.
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/sequences.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

// Where a dimension has one entry its stride means nothing.
int64_t step(const at::Tensor& tensor, int64_t dim) {
  return tensor.size(dim) == 1 ? 0 : tensor.stride(dim);
}

// [tokens, heads, channels] or [heads, channels].
Numbers numbers_of(const OptionalTensor& tensor, at::IntArrayRef shape, const char* name) {
  if (!tensor) return {};
  check_shape(*tensor, shape, name);
  const int64_t last = tensor->dim() - 1;
  return {tensor->data_ptr(), dtype_of(*tensor, name), last == 2 ? tensor->stride(0) : 0,
          step(*tensor, last - 1), step(*tensor, last)};
}

// out, x, z, dt [tokens, heads, channels]; state [slots, heads, channels, states];
// a [heads, channels, states]; b, c [tokens, groups, states]; d, dt_bias [heads, channels].
struct Scan {
  at::Tensor out, state, x, dt, a, b, c;
  OptionalTensor d, z, dt_bias;
  bool softplus;
};

void run(const Scan& scan, const StepSequences& sequences, const OptionalTensor& targets) {
  const DType dtype = dtype_of(scan.x, "x"), state_type = dtype_of(scan.state, "state");
  check_same_dtype(scan.b, "B", scan.x, "x");
  check_same_dtype(scan.c, "C", scan.x, "x");
  check_same_dtype(scan.out, "out", scan.x, "x");
  if (scan.z) check_same_dtype(*scan.z, "z", scan.x, "x");
  TORCH_CHECK_TYPE(scan.a.scalar_type() == at::kFloat, "A has dtype ", scan.a.scalar_type(),
                   ", expected ", at::kFloat, ".");
  TORCH_CHECK_VALUE(scan.x.dim() == 3 && scan.state.dim() == 4 && scan.b.dim() == 3, "x has shape ",
                    scan.x.sizes(), ", state ", scan.state.sizes(), " and B ", scan.b.sizes(),
                    ", expected [tokens, heads, channels], "
                    "[slots, heads, channels, states] and [tokens, groups, states].");
  StateScanArgs args{};
  args.tokens = scan.x.size(0);
  args.heads = scan.x.size(1);
  args.channels = scan.x.size(2);
  args.groups = scan.b.size(1);
  args.states = scan.b.size(2);
  TORCH_CHECK_VALUE(args.groups > 0 && args.heads % args.groups == 0, args.heads,
                    " heads cannot share ", args.groups, " groups evenly.");
  const std::array<int64_t, 3> tokens{args.tokens, args.heads, args.channels};
  const std::array<int64_t, 2> heads{args.heads, args.channels};
  args.x = numbers_of(scan.x, tokens, "x");
  args.z = numbers_of(scan.z, tokens, "z");
  args.dt = numbers_of(scan.dt, tokens, "dt");
  args.dt_bias = numbers_of(scan.dt_bias, heads, "dt_bias");
  args.d = numbers_of(scan.d, heads, "D");
  check_shape(scan.a, {args.heads, args.channels, args.states}, "A");
  args.a = scan.a.const_data_ptr<float>();
  args.a_head_stride = step(scan.a, 0);
  args.a_channel_stride = step(scan.a, 1);
  args.a_state_stride = step(scan.a, 2);
  check_shape(scan.b, {args.tokens, args.groups, args.states}, "B");
  check_shape(scan.c, scan.b.sizes(), "C");
  args.b = scan.b.data_ptr();
  args.b_token_stride = scan.b.stride(0);
  args.b_group_stride = scan.b.stride(1);
  args.b_state_stride = scan.b.stride(2);
  args.c = scan.c.data_ptr();
  args.c_token_stride = scan.c.stride(0);
  args.c_group_stride = scan.c.stride(1);
  args.c_state_stride = scan.c.stride(2);
  check_shape(scan.out, tokens, "out");
  args.out = scan.out.data_ptr();
  args.out_token_stride = scan.out.stride(0);
  args.out_head_stride = scan.out.stride(1);
  args.out_channel_stride = scan.out.stride(2);
  check_dense_last_dim(scan.state, "state");
  check_shape(scan.state, {scan.state.size(0), args.heads, args.channels, args.states}, "state");
  args.state = scan.state.data_ptr();
  args.state_slot_stride = scan.state.stride(0);
  args.state_head_stride = scan.state.stride(1);
  args.state_channel_stride = scan.state.stride(2);
  args.softplus = scan.softplus;
  args.shared_steps = args.a_channel_stride == 0 && args.a_state_stride == 0 &&
                      args.dt.channel_stride == 0 && args.dt_bias.channel_stride == 0;
  StepTensor step_targets;
  if (targets) {
    check_index(*targets, at::kInt, "The indices of states");
    TORCH_CHECK_VALUE(targets->dim() == 1 ||
                          (targets->size(1) > sequences.drafts() && is_dense_in_last_dim(*targets)),
                      "dst_state_batch_indices has shape ", targets->sizes(),
                      ", which is no dense row for each of its slots.");
    step_targets = StepTensor(*targets);
    args.target_stride = targets->stride(0);
  }

  const KernelTable& table = kernels();
  const int64_t block = table.scan_channels, blocks = ceil_div(args.channels, block);
  const int64_t parts = args.heads * blocks;
  // One sequence more: the tokens of none.
  parallel_items([=] { return args.tokens > 0 ? (sequences.get().count + 1) * parts : 0; },
                 table.state_scan_scratch_floats(args.states),
                 [=](int64_t i, float* scratch) {
                   StateScanArgs now = args;
                   now.sequences = sequences.get();
                   now.targets = step_targets ? step_targets.data<int32_t>() : nullptr;
                   const int64_t first = i % blocks * block;
                   const StateScanItem item{i / parts,
                                            i / blocks % args.heads,
                                            {first, std::min(first + block, args.channels)}};
                   kernels().state_scan(dtype, state_type, now, item, scratch);
                 });
}

OptionalTensor unsqueezed(const OptionalTensor& tensor, int64_t dim) {
  return tensor ? OptionalTensor(tensor->unsqueeze(dim)) : std::nullopt;
}
// [heads], the same for all channels, as [heads, channels].
OptionalTensor for_channels(const OptionalTensor& tensor, int64_t channels) {
  if (!tensor || tensor->dim() != 1) return tensor;
  return tensor->unsqueeze(1).expand({-1, channels});
}

}  // namespace

void selective_state_update(at::Tensor& state, const at::Tensor& x, const at::Tensor& dt,
                            const at::Tensor& a, const at::Tensor& b, const at::Tensor& c,
                            const OptionalTensor& d, const OptionalTensor& z,
                            const OptionalTensor& dt_bias, bool dt_softplus,
                            const OptionalTensor& state_batch_indices,
                            const OptionalTensor& dst_state_batch_indices, int64_t null_block_id,
                            at::Tensor& out, const OptionalTensor& num_accepted_tokens,
                            const OptionalTensor& cu_seqlens) {
  const StepSequences sequences(cu_seqlens, x.size(0), 1, state_batch_indices, null_block_id,
                                std::nullopt, true, num_accepted_tokens);
  Scan scan{out, state, x, dt, a, b, c, d, z, dt_bias, dt_softplus};
  if (state.dim() == 3) {  // Mamba: one head
    scan.out = out.unsqueeze(1);
    scan.state = state.unsqueeze(1);
    scan.x = x.unsqueeze(1);
    scan.dt = dt.unsqueeze(1);
    scan.a = a.unsqueeze(0);
    scan.b = b.unsqueeze(1);
    scan.c = c.unsqueeze(1);
    scan.d = unsqueezed(d, 0);
    scan.z = unsqueezed(z, 1);
    scan.dt_bias = unsqueezed(dt_bias, 0);
  }
  run(scan, sequences, dst_state_batch_indices);
}

void state_scan(at::Tensor& out, at::Tensor& states, const at::Tensor& x, const at::Tensor& dt,
                const at::Tensor& a, const at::Tensor& b, const at::Tensor& c,
                const OptionalTensor& d, const OptionalTensor& z, const OptionalTensor& dt_bias,
                bool dt_softplus, const at::Tensor& query_start_loc, const OptionalTensor& slots,
                const OptionalTensor& has_initial_state, const OptionalTensor& accepted) {
  TORCH_CHECK_VALUE(x.dim() == 3 && b.dim() == 3, "x has shape ", x.sizes(), " and B ", b.sizes(),
                    ", expected [tokens, heads, channels] and [tokens, groups, states].");
  const StepSequences sequences(query_start_loc, 0, 0, slots, kNullSlot, has_initial_state, true,
                                accepted);
  const int64_t channels = x.size(2), size = b.size(2);
  run({out, states, x, dt.dim() == 2 ? dt.unsqueeze(2).expand({-1, -1, channels}) : dt,
       a.dim() == 1 ? a.view({-1, 1, 1}).expand({-1, channels, size}) : a, b, c,
       for_channels(d, channels), z, for_channels(dt_bias, channels), dt_softplus},
      sequences, std::nullopt);
}

void mamba_chunk_scan_fwd(at::Tensor& out, at::Tensor& final_states, const at::Tensor& x,
                          const at::Tensor& dt, const at::Tensor& a, const at::Tensor& b,
                          const at::Tensor& c, const OptionalTensor& d, const OptionalTensor& z,
                          const at::Tensor& cu_seqlens) {
  state_scan(out, final_states, x, dt, a, b, c, d, z, std::nullopt, false, cu_seqlens, std::nullopt,
             std::nullopt, std::nullopt);
}

void selective_scan_fwd(at::Tensor& u, at::Tensor& delta, const at::Tensor& a, const at::Tensor& b,
                        const at::Tensor& c, const OptionalTensor& d, OptionalTensor z,
                        const OptionalTensor& delta_bias, bool delta_softplus,
                        const OptionalTensor& query_start_loc, const OptionalTensor& cache_indices,
                        const OptionalTensor& has_initial_state, at::Tensor& ssm_states,
                        int64_t null_block_id, int64_t, const OptionalTensor& first_block,
                        const OptionalTensor& last_block, const OptionalTensor& initial_state,
                        const OptionalTensor&, const OptionalTensor&) {
  TORCH_CHECK_NOT_IMPLEMENTED(!first_block && !last_block && !initial_state,
                              "selective_scan_fwd keeps no states inside of a prompt: set "
                              "--mamba-cache-mode to align or none.");
  TORCH_CHECK_VALUE(u.dim() == 2 && b.dim() == 3 && query_start_loc, "u has shape ", u.sizes(),
                    " and B ", b.sizes(),
                    ", expected [channels, tokens] and "
                    "[groups, states, tokens] with query_start_loc.");
  // A group of channels is a head here.
  const int64_t groups = b.size(0);
  const auto by_token = [&](const at::Tensor& tensor) {
    return tensor.t().unflatten(1, {groups, -1});
  };
  const auto by_group = [&](const OptionalTensor& tensor) {
    return tensor ? OptionalTensor(tensor->unflatten(0, {groups, -1})) : std::nullopt;
  };
  const StepSequences sequences(query_start_loc, 0, 0, cache_indices, null_block_id,
                                has_initial_state, false);
  const OptionalTensor gate = z ? OptionalTensor(by_token(*z)) : std::nullopt;
  const at::Tensor steps = by_token(delta);
  run({gate ? *gate : steps, ssm_states.unflatten(1, {groups, -1}), by_token(u), steps,
       a.unflatten(0, {groups, -1}), b.permute({2, 0, 1}), c.permute({2, 0, 1}), by_group(d), gate,
       by_group(delta_bias), delta_softplus},
      sequences, std::nullopt);
}

}  // namespace cpu_backend
