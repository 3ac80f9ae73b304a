// Verifying what a draft proposed, and proposing what followed the same words before.
//
// Drafts of all requests lie one behind the other; cu_num_draft_tokens[r] is where those of request
// r end.  A request's row of output_token_ids [requests, max_spec_len + 1] takes the drafts up to
// the first that is rejected, what stands in its place, and the bonus token if none is; the caller
// has filled the rest.
#include "torch_ops/speculation.h"

#include <ATen/Dispatch_v2.h>

#include <algorithm>
#include <vector>

#include "torch_ops/integers.h"
#include "torch_ops/parallel.h"

namespace cpu_backend {
namespace {

// f(request, begin, end) for the drafts of each request.
template <class F>
void for_each_request(const Integers& ends, int64_t drafts, const F& f) {
  int64_t begin = 0;
  for (int64_t request = 0; request < ends.size(); ++request) {
    const int64_t end = ends[request];
    TORCH_CHECK_VALUE(begin <= end && end <= drafts, "cu_num_draft_tokens must rise to at most ",
                      drafts, ", the number of tokens.");
    f(request, begin, end);
    begin = end;
  }
}

// Whether each request takes part in a pass: those marked as `wanted`, or all without marks.
class Chosen {
 public:
  Chosen(const OptionalTensor& is_greedy, bool wanted, int64_t requests)
      : marks_(is_greedy ? typed_data<bool>(*is_greedy, "is_greedy") : nullptr), wanted_(wanted) {
    if (is_greedy) check_shape(*is_greedy, {requests}, "is_greedy");
  }
  bool operator()(int64_t request) const { return marks_ == nullptr || marks_[request] == wanted_; }

 private:
  const bool* marks_;
  bool wanted_;
};

// accept(i): whether the draft at i stands; instead(i): the token in its place if not.
template <class Accept, class Instead>
void verify(const at::Tensor& output_token_ids, const at::Tensor& cu_num_draft_tokens,
            const at::Tensor& draft_token_ids, const at::Tensor& bonus_token_ids,
            int64_t max_spec_len, const Chosen& chosen, const Accept& accept,
            const Instead& instead) {
  const Integers output(output_token_ids, "output_token_ids");
  const Integers ends(cu_num_draft_tokens, "cu_num_draft_tokens");
  const Integers drafts(draft_token_ids, "draft_token_ids");
  const Integers bonus(bonus_token_ids, "bonus_token_ids");
  output.check_size(ends.size() * (max_spec_len + 1));
  bonus.check_size(ends.size());
  for_each_request(ends, drafts.size(), [&](int64_t request, int64_t begin, int64_t end) {
    if (!chosen(request)) return;
    TORCH_CHECK_VALUE(end - begin <= max_spec_len, end - begin, " drafts of one request are more ",
                      "than max_spec_len, ", max_spec_len, ".");
    int64_t at = request * (max_spec_len + 1);
    for (int64_t i = begin; i < end; ++i) {
      if (!accept(i)) {
        output.set(at, instead(i));
        return;
      }
      output.set(at++, drafts[i]);
    }
    output.set(at, bonus[request]);
  });
}

const float* probabilities(const at::Tensor& probs, int64_t tokens, int64_t vocab_size,
                           const char* name) {
  check_shape(probs, {tokens, vocab_size}, name);
  return typed_data<float>(probs, name);
}

// Null where the draft gives none: it was certain of its tokens.
const float* draft_probabilities(const OptionalTensor& probs, bool none, int64_t tokens,
                                 int64_t vocab_size) {
  if (none) return nullptr;
  TORCH_CHECK_VALUE(probs, "draft_probs is missing.");
  return probabilities(*probs, tokens, vocab_size, "draft_probs");
}

}  // namespace

void expand(at::Tensor& output, const at::Tensor& input, const at::Tensor& cu_num_tokens,
            int64_t replace_from, int64_t replace_to) {
  const Integers ends(cu_num_tokens, "cu_num_tokens");
  check_shape(input, {ends.size()}, "input");
  check_same_dtype(output, "output", input, "input");
  TORCH_CHECK_VALUE(output.is_contiguous() && input.is_contiguous(),
                    "output and input must be contiguous.");
  AT_DISPATCH_V2(input.scalar_type(), "expand", AT_WRAP([&] {
                   const auto* from = input.const_data_ptr<scalar_t>();
                   auto* to = output.data_ptr<scalar_t>();
                   const auto replaced = static_cast<scalar_t>(replace_from);
                   const auto replacement = static_cast<scalar_t>(replace_to);
                   for_each_request(
                       ends, output.numel(), [&](int64_t request, int64_t begin, int64_t end) {
                         const scalar_t value = from[request];
                         std::fill(to + begin, to + end, value == replaced ? replacement : value);
                       });
                 }),
                 at::kFloat, at::kInt, at::kLong);
}

void reject_greedy(at::Tensor& output_token_ids, const at::Tensor& cu_num_draft_tokens,
                   const at::Tensor& draft_token_ids, const at::Tensor& target_argmax,
                   const at::Tensor& bonus_token_ids, const OptionalTensor& is_greedy,
                   int64_t max_spec_len) {
  const Integers drafts(draft_token_ids, "draft_token_ids");
  const Integers best(target_argmax, "target_argmax");
  best.check_size(drafts.size());
  verify(
      output_token_ids, cu_num_draft_tokens, draft_token_ids, bonus_token_ids, max_spec_len,
      Chosen(is_greedy, true, cu_num_draft_tokens.numel()),
      [&](int64_t i) { return drafts[i] == best[i]; }, [&](int64_t i) { return best[i]; });
}

void reject_random(at::Tensor& output_token_ids, const at::Tensor& cu_num_draft_tokens,
                   const at::Tensor& draft_token_ids, const OptionalTensor& draft_probs,
                   const at::Tensor& target_probs, const at::Tensor& bonus_token_ids,
                   const at::Tensor& recovered_token_ids, const at::Tensor& uniform_probs,
                   const OptionalTensor& is_greedy, int64_t max_spec_len, int64_t vocab_size,
                   bool no_draft_probs) {
  const Integers drafts(draft_token_ids, "draft_token_ids");
  const Integers recovered(recovered_token_ids, "recovered_token_ids");
  recovered.check_size(drafts.size());
  const float* target = probabilities(target_probs, drafts.size(), vocab_size, "target_probs");
  const float* draft = draft_probabilities(draft_probs, no_draft_probs, drafts.size(), vocab_size);
  const at::Tensor uniform = uniform_probs.to(at::kDouble);  // as the host draws them
  check_shape(uniform, {drafts.size()}, "uniform_probs");
  const auto* limit = typed_data<double>(uniform, "uniform_probs");
  verify(
      output_token_ids, cu_num_draft_tokens, draft_token_ids, bonus_token_ids, max_spec_len,
      Chosen(is_greedy, false, cu_num_draft_tokens.numel()),
      [&](int64_t i) {
        const int64_t token = drafts[i];
        if (token < 0 || token >= vocab_size) return false;  // padding
        const float q = draft ? draft[i * vocab_size + token] : 1.0f;
        return q > 0.0f && static_cast<double>(target[i * vocab_size + token] / q) >= limit[i];
      },
      [&](int64_t i) { return recovered[i]; });
}

// The draw is the largest of probability * noise, noise being 1 / Exp(1) (Gumbel-max).
void sample_recovered(at::Tensor& output_token_ids, const at::Tensor& cu_num_draft_tokens,
                      const at::Tensor& draft_token_ids, const OptionalTensor& draft_probs,
                      const at::Tensor& target_probs, const at::Tensor& inv_q, int64_t vocab_size,
                      bool no_draft_probs) {
  const Integers output(output_token_ids, "output_token_ids");
  const Integers ends(cu_num_draft_tokens, "cu_num_draft_tokens");
  const Integers drafts(draft_token_ids, "draft_token_ids");
  const int64_t tokens = drafts.size();
  output.check_size(tokens);
  const float* target = probabilities(target_probs, tokens, vocab_size, "target_probs");
  const float* draft = draft_probabilities(draft_probs, no_draft_probs, tokens, vocab_size);
  const at::Tensor noise_rows = inv_q.to(at::kFloat);
  const float* noise = probabilities(noise_rows, ends.size(), vocab_size, "inv_q");
  std::vector<int64_t> noise_row(static_cast<size_t>(tokens));
  int64_t verified = 0;
  for_each_request(ends, tokens, [&](int64_t request, int64_t begin, int64_t end) {
    std::fill(noise_row.begin() + begin, noise_row.begin() + end, request);
    verified = end;
  });
  const auto largest = kernels().argmax_row;
  parallel_slices(verified, row_grain(4 * vocab_size), [=, rows = noise_row.data()](Slice slice) {
    float* score = thread_scratch(vocab_size);
    for (int64_t i = slice.begin; i < slice.end; ++i) {
      const float* p = target + i * vocab_size;
      const float* n = noise + rows[i] * vocab_size;
      if (draft) {
        const float* q = draft + i * vocab_size;
        for (int64_t v = 0; v < vocab_size; ++v) score[v] = std::max(p[v] - q[v], 0.0f) * n[v];
      } else {
        for (int64_t v = 0; v < vocab_size; ++v) score[v] = p[v] * n[v];
        if (drafts[i] >= 0 && drafts[i] < vocab_size) score[drafts[i]] = 0.0f;
      }
      output.set(i, largest(DType::kFloat32, score, vocab_size));
    }
  });
}

// For each of the requests, rows of tokens [*, max_model_len] that are lengths[row] long: of the
// places where its last words, at most `most` and at least `least` of them, occurred before, the
// first among those with the longest match, and what followed there.  -1 where there is nothing.
at::Tensor look_up_drafts(const at::Tensor& tokens, const at::Tensor& lengths,
                          at::IntArrayRef requests, int64_t least, int64_t most, int64_t drafts,
                          int64_t max_length) {
  TORCH_CHECK_VALUE(tokens.dim() == 2, "tokens must be [requests, tokens].");
  TORCH_CHECK_VALUE(1 <= least && least <= most && drafts >= 0,
                    "matches must be of at least one token, and least must not exceed most.");
  const Rows rows = rows_of(tokens, "tokens");
  const auto* base = typed_data<int32_t>(tokens, "tokens");
  const Integers length(lengths, "lengths");
  const auto count = static_cast<int64_t>(requests.size());
  for (const int64_t row : requests) {
    TORCH_CHECK_VALUE(row >= 0 && row < rows.count && row < length.size() && length[row] >= 0 &&
                          length[row] <= rows.size,
                      "request ", row, " has no such row of tokens.");
  }
  at::Tensor found = at::full({count, drafts}, -1, at::kInt);
  auto* out = found.data_ptr<int32_t>();
  parallel_slices(count, 1, [=, rows_of_requests = requests.data()](Slice slice) {
    for (int64_t r = slice.begin; r < slice.end; ++r) {
      const int64_t row = rows_of_requests[r], n = length[row];
      const int32_t* const text = base + row * rows.stride;
      int64_t longest = least - 1, after = n;
      for (int64_t end = 1; end < n && longest < most; ++end) {
        int64_t match = 0;
        while (match < most && match < end && text[end - 1 - match] == text[n - 1 - match]) ++match;
        if (match > longest) {
          longest = match;
          after = end;
        }
      }
      const int64_t room = std::min({drafts, max_length - n, n - after});
      if (room > 0) std::copy_n(text + after, room, out + r * drafts);
    }
  });
  return found;
}

}  // namespace cpu_backend
