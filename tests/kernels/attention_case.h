// One step of paged attention, from plan to output, and plain softmax attention beside it.
//
// The cache is NaN wherever no token was written, and blocks that a sliding window has left behind
// are replaced by one that was never written: a kernel that reads too far cannot hide it.
#pragma once

#include "core/attention_plan.h"
#include "harness.h"
#include "kv_codes.h"

namespace cpu_backend::test {

struct Request {
  int32_t query_len, seq_len;
};

struct Case {
  DType type = DType::kFloat32;
  KvType kv = KvType::kActivations;
  int num_heads = 4, num_kv_heads = 2, head_dim = 32, block_size = 32;
  int narrow = 0;  // channels of values that are narrower than keys
  std::vector<Request> requests = {{1, 40}, {7, 7}, {5, 50}};
  // 0, 1, or alternating per request: 2, windows reach both ways, 3, they end in the past alone.
  int causal = 1;
  int window = 0;
  float softcap = 0.0f;
  bool alibi = false, sinks = false;
  bool one_query = false;  // all tokens of a request ask the same
  float all = NAN;  // unless NaN: queries, keys and values, with signs that tell tokens apart
  // Unless 0: queries are zeros, so that all tokens weigh the same, and with the scales of int8
  // values they are whole numbers up to this one, which is in every page.
  int integers = 0;
  uint64_t seed = 61;

  int value_dim() const { return narrow ? narrow : head_dim; }
};

inline std::string label_of(const Case& c) {
  return format(
      "%s %s heads %d/%d head_dim %d/%d block %d causal %d window %d cap %g alibi %d sinks %d",
      name_of(c.type), name_of(c.kv), c.num_heads, c.num_kv_heads, c.head_dim, c.value_dim(),
      c.block_size, c.causal, c.window, static_cast<double>(c.softcap), c.alibi, c.sinks);
}

constexpr float kKeyScale = 0.037f, kValueScale = 0.0051f;  // of fp8
// Of outputs below 1 where queries and probabilities are rounded to 16 bits: a query's channels are
// off by 2^-16 of its largest, 2, so scores of up to 512 channels at random signs by some 10^-4.
constexpr double kIntegerError = 1e-4;
// Where these are whole numbers: a few roundings of fp32.
constexpr double kWholeError = 1e-6;
// Where probabilities are rounded to bf16, by up to 2^-9 of each at random signs.
constexpr double kRoundedError = 0x1p-9;

inline bool sees(const Case& c, bool causal, int64_t position, int64_t other) {
  if (causal && other > position) return false;
  if (c.causal == 3 && other > position) return true;
  return c.window <= 0 || std::llabs(position - other) < c.window;
}

// The tensors of one step; a request's content depends on its seed alone, not on its neighbours.
class Step {
 public:
  // `pick`: only these requests of the case, in this order.
  Step(const Case& c, std::vector<size_t> pick)
      : c_(c),
        pick_(std::move(pick)),
        query_(c.type, tokens(), c.num_heads * head_stride(), c.num_heads * head_stride() + 3),
        scale_(1.0f / std::sqrt(static_cast<float>(c.head_dim))) {
    for (size_t i : pick_) {
      const Request& request = c.requests[i];
      Random random(c.seed * 1000 + i);
      keys_.emplace_back(c.type, request.seq_len, c.num_kv_heads * c.head_dim);
      values_.emplace_back(c.type, request.seq_len, c.num_kv_heads * c.value_dim());
      keys_.back().fill(random, -2.0, 2.0);
      values_.back().fill(random, -1.0, 1.0);
      for (int t = 0; !std::isnan(c.all) && t < request.seq_len; ++t) {
        const float sign = t % 2 ? 1.0f : -1.0f;
        for (int64_t i = 0; i < keys_.back().columns(); ++i) keys_.back().set(t, i, sign * c.all);
        for (int64_t i = 0; i < values_.back().columns(); ++i)
          values_.back().set(t, i, -sign * c.all);
      }
      for (int t = 0; c.integers > 0 && t < request.seq_len; ++t)
        for (int64_t first = 0; first < values_.back().columns(); first += c.value_dim()) {
          const float scale =
              static_cast<float>(t % 16 ? 1 + random.below(c.integers) : c.integers);
          for (int64_t i = 0; i < c.value_dim(); ++i) {
            const float code = static_cast<float>(i ? random.below(255) - 127 : 127);
            values_.back().set(t, first + i, scale * code * 0x1p-22f);
          }
        }
      cached_keys_.push_back(cached(keys_.back(), kKeyScale));
      cached_values_.push_back(cached(values_.back(), kValueScale));
      for (int t = 0; t < request.query_len; ++t)
        for (int h = 0; h < c.num_heads; ++h)
          for (int d = 0; d < c.head_dim; ++d) {
            const int64_t column = h * head_stride() + d;
            const float first = query_.get(start_.back(), column);
            query_.set(start_.back() + t, column,
                       c.integers > 0         ? 0.0f
                       : !std::isnan(c.all)   ? c.all
                       : c.one_query && t > 0 ? first
                                              : static_cast<float>(random.uniform(-2.0, 2.0)));
          }
      start_.push_back(start_.back() + request.query_len);
      seq_lens_.push_back(request.seq_len);
      causal_.push_back(c.causal >= 2 ? i % 2 == 0 : c.causal == 1);
    }
    for (int h = 0; h < c.num_heads; ++h) {
      slopes_.push_back(std::pow(0.5f, static_cast<float>(h + 1)));
      sinks_.push_back(0.7f * static_cast<float>(h) - 1.0f);
    }
  }

  Buffer run(const KernelTable& table, int threads);
  void compare(const KernelTable& table, const Buffer& out, const std::string& label) const;
  int64_t first_token(size_t request) const { return start_[request]; }

 private:
  int64_t head_stride() const { return c_.head_dim + 1; }
  int64_t tokens() const {
    int64_t sum = 0;
    for (size_t i : pick_) sum += c_.requests[i].query_len;
    return sum;
  }
  PagedKv paged(Buffer& cache) const;
  std::vector<double> cached(const Buffer& rows, float scale) const;
  Buffer write_cache(const KernelTable& table, std::vector<int32_t>& block_table, int64_t width);
  template <class Real>
  std::vector<Real> reference_row(size_t request, int token, int head) const;

  Case c_;
  std::vector<size_t> pick_;
  Buffer query_;
  float scale_;
  std::vector<Buffer> keys_, values_;
  std::vector<std::vector<double>> cached_keys_, cached_values_;  // what their codes stand for
  std::vector<int32_t> start_ = {0}, seq_lens_;
  std::vector<uint8_t> causal_;
  std::vector<float> slopes_, sinks_;
};

inline PagedKv Step::paged(Buffer& cache) const {
  const int64_t elements = c_.kv == KvType::kActivations ? 1 : 4;  // codes per element of `cache`
  PagedKv kv{cache.data(),
             c_.num_kv_heads * cache.stride() * elements,
             cache.stride() * elements,
             c_.block_size,
             c_.head_dim,
             c_.value_dim()};
  kv.type = c_.kv;
  if (c_.kv == KvType::kFp8E4M3 || c_.kv == KvType::kFp8E5M2) {
    kv.key_scale = kKeyScale;
    kv.value_scale = kValueScale;
  }
  return kv;
}

// Keys or values as the cache holds them, code times scale without rounding.
inline std::vector<double> Step::cached(const Buffer& rows, float scale) const {
  std::vector<double> all;
  const int64_t channels = rows.columns() / c_.num_kv_heads;
  for (int64_t t = 0; t < rows.rows(); ++t) {
    for (int64_t first = 0; first < rows.columns(); first += channels) {
      std::vector<float> x;
      for (int64_t d = 0; d < channels; ++d) x.push_back(rows.get(t, first + d));
      const float by = c_.kv == KvType::kInt8 ? int8_scale_of(x) : scale;
      for (float v : x)
        all.push_back(c_.kv == KvType::kActivations
                          ? static_cast<double>(v)
                          : static_cast<double>(value_of(c_.kv, code_of(c_.kv, v, by))) *
                                static_cast<double>(by));
    }
  }
  return all;
}

// Blocks are dealt in a shuffled order; block 0 is never written.
inline Buffer Step::write_cache(const KernelTable& table, std::vector<int32_t>& block_table,
                                int64_t width) {
  const int64_t n = c_.block_size;
  std::vector<int32_t> free_blocks;
  for (int32_t i = 1; i <= width * static_cast<int64_t>(pick_.size()); ++i)
    free_blocks.push_back(i);
  Random random(c_.seed);
  for (size_t i = free_blocks.size(); i > 1; --i)
    std::swap(free_blocks[i - 1],
              free_blocks[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  const DType element = c_.kv == KvType::kActivations ? c_.type : DType::kFloat32;
  const int64_t page =
      page_bytes(c_.kv, c_.type, n, c_.head_dim + c_.value_dim()) / bytes_of(element);
  Buffer cache(element, (static_cast<int64_t>(free_blocks.size()) + 1) * c_.num_kv_heads, page,
               page + 2);
  block_table.assign(static_cast<size_t>(width) * pick_.size(), 0);
  for (size_t r = 0; r < pick_.size(); ++r) {
    std::vector<int64_t> slots;
    int32_t* blocks = &block_table[r * static_cast<size_t>(width)];
    for (int64_t t = 0; t < seq_lens_[r]; ++t) {
      if (t % n == 0) {
        blocks[t / n] = free_blocks.back();
        free_blocks.pop_back();
      }
      slots.push_back(blocks[t / n] * n + t % n);
    }
    WriteKvArgs args{};
    args.key = {keys_[r].data(), keys_[r].stride(), c_.head_dim};
    args.value = {values_[r].data(), values_[r].stride(), c_.value_dim()};
    args.cache = paged(cache);
    args.slots = slots.data();
    args.num_kv_heads = c_.num_kv_heads;
    table.write_kv(c_.type, args, {0, seq_lens_[r]});
    const int64_t first = seq_lens_[r] - (start_[r + 1] - start_[r]) - c_.window + 1;
    for (int64_t block = 0; c_.window > 0 && (block + 1) * n <= first; ++block) blocks[block] = 0;
  }
  return cache;
}

inline Buffer Step::run(const KernelTable& table, int threads) {
  int64_t width = 1;
  for (int32_t seq_len : seq_lens_)
    width = std::max<int64_t>(width, ceil_div(seq_len, c_.block_size));
  width += 2;  // entries past the sequence
  std::vector<int32_t> block_table;
  Buffer cache = write_cache(table, block_table, width);
  Buffer out(c_.type, tokens(), c_.num_heads * head_stride(), c_.num_heads * head_stride() + 5);

  AttendArgs args{};
  args.query = {query_.data(), query_.stride(), head_stride()};
  args.out = {out.data(), out.stride(), head_stride()};
  args.cache = paged(cache);
  args.pages = {static_cast<int64_t>(seq_lens_.size()), start_.data(), seq_lens_.data(),
                block_table.data(), width};
  args.causal = c_.causal >= 2 ? causal_.data() : nullptr;
  args.all_causal = c_.causal % 2 == 1;
  args.num_heads = c_.num_heads;
  args.num_kv_heads = c_.num_kv_heads;
  args.scale = scale_;
  args.softcap = c_.softcap;
  args.window = c_.window;
  args.alibi_slopes = c_.alibi ? slopes_.data() : nullptr;
  args.sinks = c_.sinks ? sinks_.data() : nullptr;

  const AttentionShape shape{c_.num_heads,
                             c_.num_kv_heads,
                             start_.data(),
                             seq_lens_.data(),
                             static_cast<int>(pick_.size()),
                             args.all_causal,
                             args.causal,
                             c_.window,
                             table.attend_item_rows};
  const AttentionPlan plan = plan_attention(shape, threads);
  Buffer partials(DType::kFloat32, plan.partials, kAttendRows * (c_.value_dim() + 2));
  args.partials = static_cast<float*>(partials.data());
  const int64_t floats = table.attend_scratch_floats(args.cache);
  // Each item gets scratch full of NaN, as if another thread ran it.
  const auto with_scratch = [&](const auto& work) {
    Buffer scratch(DType::kFloat32, 1, floats);
    work(static_cast<float*>(scratch.data()));
    scratch.check_guards("attention scratch");
  };
  for (const AttendItem& item : plan.items)
    with_scratch([&](float* scratch) { table.attend(c_.type, args, item, scratch); });
  for (const MergeItem& item : plan.merges)
    with_scratch([&](float* scratch) { table.merge_partials(c_.type, args, item, scratch); });
  partials.check_guards("attention partials");
  cache.check_guards("attention cache");
  return out;
}

// Softmax attention of one query head in three passes, as a textbook has it.
template <class Real>
std::vector<Real> Step::reference_row(size_t request, int token, int head) const {
  const int64_t seq_len = seq_lens_[request];
  const int64_t position = seq_len - (start_[request + 1] - start_[request]) + token;
  const int64_t kv_head = head / (c_.num_heads / c_.num_kv_heads);
  const std::vector<double>& keys = cached_keys_[request];
  const std::vector<double>& values = cached_values_[request];
  const auto at = [&](int64_t j, int channels, int d) {
    return static_cast<size_t>((j * c_.num_kv_heads + kv_head) * channels + d);
  };
  std::vector<Real> scores(static_cast<size_t>(seq_len), -HUGE_VALF);
  Real max = c_.sinks ? static_cast<Real>(sinks_[static_cast<size_t>(head)]) : -HUGE_VALF;
  for (int64_t j = 0; j < seq_len; ++j) {
    if (!sees(c_, causal_[request] != 0, position, j)) continue;
    Real s = 0;
    for (int d = 0; d < c_.head_dim; ++d)
      s += static_cast<Real>(query_.get(start_[request] + token, head * head_stride() + d)) *
           static_cast<Real>(keys[at(j, c_.head_dim, d)]);
    s *= static_cast<Real>(scale_);
    if (c_.softcap > 0.0f) s = c_.softcap * std::tanh(s / c_.softcap);
    if (c_.alibi) s += slopes_[static_cast<size_t>(head)] * static_cast<Real>(j - position);
    scores[static_cast<size_t>(j)] = s;
    max = std::max(max, s);
  }
  Real sum = c_.sinks ? std::exp(static_cast<Real>(sinks_[static_cast<size_t>(head)]) - max) : 0;
  std::vector<Real> out(static_cast<size_t>(c_.value_dim()), 0);
  for (int64_t j = 0; j < seq_len; ++j) {
    const Real s = scores[static_cast<size_t>(j)];
    if (s == -HUGE_VALF) continue;
    const Real p = std::exp(s - max);
    sum += p;
    for (int d = 0; d < c_.value_dim(); ++d)
      out[static_cast<size_t>(d)] += p * static_cast<Real>(values[at(j, c_.value_dim(), d)]);
  }
  for (Real& o : out) o /= sum;
  return out;
}

inline void Step::compare(const KernelTable& table, const Buffer& out,
                          const std::string& label) const {
  const bool fp8 = c_.kv == KvType::kFp8E4M3 || c_.kv == KvType::kFp8E5M2;
  const bool rounded =
      (fp8 || c_.kv == KvType::kActivations) && c_.type == DType::kBFloat16 && has_bf16_unit(table);
  Compare compare(c_.type, label);
  for (size_t r = 0; r < pick_.size(); ++r) {
    for (int t = 0; t < start_[r + 1] - start_[r]; ++t) {
      for (int h = 0; h < c_.num_heads; ++h) {
        const std::vector<double> wide = reference_row<double>(r, t, h);
        const std::vector<float> plain = reference_row<float>(r, t, h);
        for (int d = 0; d < c_.value_dim(); ++d) {
          const float got = out.get(start_[r] + t, h * head_stride() + d);
          const double exact = wide[static_cast<size_t>(d)];
          if (c_.kv == KvType::kInt8 || rounded) {
            compare.add_bounded(got, exact,
                                rounded           ? kRoundedError
                                : c_.integers > 0 ? kWholeError
                                                  : kIntegerError);
          } else {
            compare.add(got, exact, plain[static_cast<size_t>(d)]);
          }
        }
        expect(out.untouched(start_[r] + t, h * head_stride() + c_.value_dim()),
               "%s: wrote between heads", label.c_str());
      }
    }
  }
  compare.check();
  out.check_guards(label);
}

inline std::vector<size_t> all_of(const Case& c) {
  std::vector<size_t> all;
  for (size_t i = 0; i < c.requests.size(); ++i) all.push_back(i);
  return all;
}

// Against the reference, and the same bits whatever the number of threads.
inline void check_case(const KernelTable& table, const Case& c) {
  const std::string label = label_of(c);
  Step step(c, all_of(c));
  const Buffer one = step.run(table, 1);
  step.compare(table, one, label);
  for (int threads : {4, 500})
    expect(step.run(table, threads) == one, "%s: %d threads change the result", label.c_str(),
           threads);
}

}  // namespace cpu_backend::test
