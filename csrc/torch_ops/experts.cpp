// A mixture of experts: each token's rows through the feed-forward networks, gated or not, that the
// router chose for it (Shazeer et al. 2017), with packed weights of any kind.
//
// Rows are sorted by expert, so that a weight comes from memory once for all of its rows, and the
// products of all experts are one loop.  What depends on the router's choice is computed inside of
// the loops, which a step recording runs again with another choice.
#include "core/expert_plan.h"
#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/product.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

using Weights = std::vector<const PackedLinear*>;

// All of one kind [n, k], so that their rows share one buffer, and as wide as x if not quantized.
Weights weights_of(at::IntArrayRef handles, int64_t n, int64_t k, const at::Tensor& x,
                   const char* name) {
  Weights weights;
  const PackedLinear& first = packed_linear(handles[0]);
  for (const int64_t handle : handles) {
    const PackedLinear& weight = packed_linear(handle);
    TORCH_CHECK_VALUE(weight.n == n && weight.k == k, name, " of an expert is [", weight.n, ", ",
                      weight.k, "], expected [", n, ", ", k, "].");
    TORCH_CHECK_VALUE(!weight.quantized == !first.quantized &&
                          weight.meets_integers() == first.meets_integers() &&
                          product_row_bytes(weight, 1) == product_row_bytes(first, 1),
                      name, " of all experts must be quantized alike.");
    TORCH_CHECK_TYPE(weight.quantized || weight.dtype == x.scalar_type(), "activations have dtype ",
                     x.scalar_type(), " but an expert was packed as ", weight.dtype, ".");
    weights.push_back(&weight);
  }
  return weights;
}

// One of the two products of every expert: rows [pairs][row_bytes] to c [pairs][c_stride].
struct ExpertProducts {
  Weights weights;
  const char* bias = nullptr;  // [experts, n]
  int64_t bias_bytes = 0;      // of one expert
  Product common{};            // everything but the weight and what belongs to an expert's rows
  ExpertItems items;

  int64_t scratch_floats() const {
    int64_t floats = 0;
    for (const PackedLinear* weight : weights)
      floats = std::max(floats, product_scratch_floats(*weight));
    return floats;
  }
  void set_bias(const OptionalTensor& tensor, const at::Tensor& x) {
    if (!tensor) return;
    const int64_t n = weights[0]->n;
    check_same_dtype(*tensor, "bias", x, "input");
    check_shape(*tensor, {static_cast<int64_t>(weights.size()), n}, "bias");
    TORCH_CHECK_VALUE(tensor->is_contiguous(), "bias must be contiguous.");
    bias = static_cast<const char*>(tensor->const_data_ptr());
    bias_bytes = n * tensor->element_size();
  }

  Product product(const ExpertRows& used, int64_t element_bytes) const {
    Product product = common;
    product.weight = weights[used.expert];
    product.m = used.rows.end - used.rows.begin;
    product.rows = static_cast<char*>(common.rows) +
                   used.rows.begin * product_row_bytes(*product.weight, element_bytes);
    product.rows_stride = padded_depth(product.weight->k);
    product.epilogue.c = static_cast<char*>(common.epilogue.c) +
                         used.rows.begin * common.epilogue.c_stride * element_bytes;
    product.epilogue.bias = bias ? bias + used.expert * bias_bytes : nullptr;
    return product;
  }
};

// One step of a layer, shared by its loops.
struct Mixture {
  ExpertProducts gate_up, down;
  ExpertPlan plan;
  int64_t element_bytes;

  void route(const int32_t* ids, int64_t pairs, int64_t threads) {
    TORCH_CHECK_INDEX(plan.route(ids, pairs, static_cast<int64_t>(gate_up.weights.size())),
                      "the router chose an expert that is not one of ", gate_up.weights.size(),
                      ".");
    const auto used = static_cast<int64_t>(plan.used.size());
    // Experts share the threads, so each is cut for its share of them.
    const int64_t share = ceil_div(threads, std::max<int64_t>(1, used));
    for (ExpertProducts* products : {&gate_up, &down})
      products->items.cut(used, [&](int64_t u) {
        return products->product(plan.used[u], element_bytes).plan(share);
      });
  }
  void run(const ExpertProducts& products, int64_t item, float* scratch) const {
    const auto [used, own] = products.items.find(item);
    products.product(plan.used[used], element_bytes).run(products.items.plans[used], own, scratch);
  }
  // f(the expert of some of the rows, these rows)
  template <class F>
  void for_each_expert(Slice rows, const F& f) const {
    for (const ExpertRows& used : plan.used) {
      const int64_t begin = std::max(rows.begin, used.rows.begin);
      const int64_t end = std::min(rows.end, used.rows.end);
      if (begin < end) f(used, Slice{begin, end});
    }
  }
};

}  // namespace

void experts(at::Tensor& out, const at::Tensor& x, at::IntArrayRef gate_up, at::IntArrayRef down,
             const OptionalTensor& gate_up_bias, const OptionalTensor& down_bias,
             const at::Tensor& topk_weights, const at::Tensor& topk_ids,
             c10::string_view activation_name) {
  TORCH_CHECK_VALUE(x.dim() == 2, "input must be [tokens, channels], it is ", x.sizes(), ".");
  TORCH_CHECK_VALUE(!gate_up.empty() && gate_up.size() == down.size(), gate_up.size(),
                    " gate and up projections do not fit ", down.size(), " down projections.");
  const Rows in = rows_of(x, "input");
  const int64_t intermediate = packed_linear(down[0]).k;
  const int parts = packed_linear(gate_up[0]).n == intermediate ? 1 : 2;  // 1: no gate
  const int64_t top_k = topk_ids.size(-1);
  const int64_t tokens = in.count;
  const int64_t pairs = tokens * top_k;
  check_shape(topk_ids, {tokens, top_k}, "topk_ids");
  check_shape(topk_weights, {tokens, top_k}, "topk_weights");
  check_same_dtype(out, "output", x, "input");
  check_shape(out, x.sizes(), "output");
  const auto* ids = typed_data<int32_t>(topk_ids, "topk_ids");
  const auto* weights = typed_data<float>(topk_weights, "topk_weights");
  const Activation kind = activation_named(activation_name);
  const DType dtype = dtype_of(x, "input");

  const auto shared = std::make_shared<Mixture>();
  Mixture* const mixture = shared.get();
  mixture->element_bytes = x.element_size();
  ExpertProducts& first = mixture->gate_up;
  ExpertProducts& second = mixture->down;
  first.weights = weights_of(gate_up, parts * intermediate, in.size, x,
                             parts == 2 ? "the gate and up projection" : "the up projection");
  second.weights = weights_of(down, in.size, intermediate, x, "the down projection");
  first.set_bias(gate_up_bias, x);
  second.set_bias(down_bias, x);

  for (const PackedLinear* weight : first.weights)
    TORCH_CHECK_VALUE(weight->parts == parts,
                      parts == 2 ? "gate and up projections must be packed in 2 parts."
                                 : "an up projection without a gate must be packed in 1 part.");
  TORCH_CHECK_VALUE(parts == 2 || !needs_gate(kind), activation_name,
                    " takes a gate, which these experts have not.");
  TORCH_CHECK_VALUE(parts == 1 || may_have_gate(kind), activation_name,
                    " is not there with a gate, which these experts have.");
  const auto buffer = [&](int64_t row_bytes) { return at::empty({pairs, row_bytes}, at::kByte); };
  const bool integer_down = second.weights[0]->meets_integers();
  const int64_t hidden_stride = padded_depth(intermediate);
  const int64_t hidden_bytes = hidden_stride * x.element_size();
  const at::Tensor rows = buffer(product_row_bytes(*first.weights[0], x.element_size()));
  const at::Tensor hidden = buffer(hidden_bytes);
  const at::Tensor down_rows =
      integer_down ? buffer(product_row_bytes(*second.weights[0], x.element_size())) : hidden;
  const at::Tensor results = buffer(in.size * x.element_size());

  first.common.dtype = second.common.dtype = dtype;
  first.common.rows = rows.data_ptr();
  first.common.epilogue.c = hidden.data_ptr();
  first.common.epilogue.c_stride = hidden_stride;
  first.common.epilogue.gated = parts == 2;
  first.common.epilogue.activated = parts == 1;
  first.common.epilogue.activation = kind;
  second.common.rows = down_rows.data_ptr();
  second.common.epilogue.c = results.data_ptr();
  second.common.epilogue.c_stride = in.size;

  if (StepRecording* recording = StepRecording::current()) recording->keep(shared);
  parallel_slices(
      1, 1, [=, threads = at::get_num_threads()](Slice) { mixture->route(ids, pairs, threads); });

  parallel_slices(
      pairs, row_grain(in.size), [=, row_bytes = in.stride * x.element_size()](Slice slice) {
        mixture->for_each_expert(slice, [&](const ExpertRows& used, Slice own) {
          const Product product = mixture->gate_up.product(used, mixture->element_bytes);
          for (int64_t r = own.begin; r < own.end; ++r) {
            const int64_t token = mixture->plan.pairs[r] / top_k;
            const int64_t at = r - used.rows.begin;
            product.take_rows(static_cast<const char*>(in.data) + token * row_bytes, 0,
                              {at, at + 1});
          }
        });
      });

  parallel_items(
      [=] { return mixture->gate_up.items.count(); }, first.scratch_floats(),
      [=](int64_t item, float* scratch) { mixture->run(mixture->gate_up, item, scratch); });

  if (integer_down) {
    parallel_slices(pairs, row_grain(intermediate),
                    [=, from = static_cast<const char*>(hidden.const_data_ptr())](Slice slice) {
                      mixture->for_each_expert(slice, [&](const ExpertRows& used, Slice own) {
                        const Product product = mixture->down.product(used, mixture->element_bytes);
                        const int64_t first_row = used.rows.begin;
                        product.take_rows(from + first_row * hidden_bytes, hidden_stride,
                                          {own.begin - first_row, own.end - first_row});
                      });
                    });
  }

  parallel_items([=] { return mixture->down.items.count(); }, second.scratch_floats(),
                 [=](int64_t item, float* scratch) { mixture->run(mixture->down, item, scratch); });

  const Rows to = rows_of(out, "output");
  const CombineArgs args{
      results.const_data_ptr(), in.size, nullptr, weights, top_k, to.data, to.stride, to.size};
  parallel_slices(tokens, row_grain(top_k * in.size), [=](Slice slice) {
    CombineArgs now = args;
    now.places = mixture->plan.places.data();
    kernels().combine(dtype, now, slice);
  });
}

}  // namespace cpu_backend
