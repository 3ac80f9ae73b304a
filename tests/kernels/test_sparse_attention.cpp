// Sparse attention: which tokens an indexer chooses, and attention to those chosen, each against
// its definition; caches and scratch are NaN where nothing was written.
#include "core/attention_plan.h"
#include "harness.h"

namespace cpu_backend::test {
namespace {

constexpr int kBlock = 48;

// One sequence in pages out of order, the last tokens of which are the step's, behind another
// request of one token that the step has as well.
struct Pages {
  std::vector<int32_t> query_start, seq_lens, blocks;
  int64_t width, count;

  Pages(int32_t query_len, int32_t seq_len)
      : query_start{0, 1, 1 + query_len}, seq_lens{1, seq_len} {
    width = ceil_div(seq_len, kBlock) + 1;
    count = width + 1;
    blocks.assign(static_cast<size_t>(2 * width), 0);
    for (int64_t i = 0; i < width; ++i)
      blocks[static_cast<size_t>(width + i)] = static_cast<int32_t>(width - i);
  }
  StepPages view() const { return {2, query_start.data(), seq_lens.data(), blocks.data(), width}; }
  int64_t block_of(int64_t position) const {
    return blocks[static_cast<size_t>(width + position / kBlock)];
  }
  int64_t position_of(int64_t token) const { return seq_lens[1] - query_start[2] + token; }
};

struct Case {
  DType type = DType::kFloat32;
  int heads = 5, key_dim = 32, value_dim = 16;
  int64_t most = 20;
  int32_t query_len = 3, seq_len = 70;
};

std::string label_of(const Case& c) {
  return format("%s heads %d dims %d %d most %d, %d of %d tokens", name_of(c.type), c.heads,
                c.key_dim, c.value_dim, static_cast<int>(c.most), c.query_len, c.seq_len);
}

// Positions of the highest scores, ascending, the earlier of equal ones.
std::vector<int32_t> best(const float* scores, int64_t count, int64_t most) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
  order.resize(static_cast<size_t>(most));
  std::sort(order.begin(), order.end());
  return order;
}

// `coarse`: of few different numbers, so that scores are equal.
void check_choice(const KernelTable& table, const Case& c, bool coarse) {
  const std::string label = label_of(c) + (coarse ? ", coarse" : "");
  const Pages pages(c.query_len, c.seq_len);
  Random random(7);
  const int64_t tokens = 1 + c.query_len;
  Buffer query(c.type, tokens, c.heads * (c.key_dim + 1));
  Buffer weights(c.type, tokens, c.heads, c.heads + 3);
  Buffer keys(c.type, c.seq_len, c.key_dim);
  query.fill(random, -1.0, 1.0);
  weights.fill(random, -1.0, 1.0);
  keys.fill(random, -1.0, 1.0);
  if (coarse)
    for (int64_t p = 0; p < c.seq_len; ++p)
      for (int64_t d = 0; d < c.key_dim; ++d) keys.set(p, d, p % 3 == 0 ? 1.0 : 0.5);
  Buffer cache(c.type, pages.count, kBlock * c.key_dim, kBlock * c.key_dim + 2);
  TokenChoiceArgs args{};
  args.cache = {cache.data(), cache.stride(), 0, kBlock, c.key_dim, 0};
  std::vector<int64_t> slots;
  for (int64_t p = 0; p < c.seq_len; ++p) slots.push_back(pages.block_of(p) * kBlock + p % kBlock);
  const WriteKvArgs write{keys.data(), keys.stride(), 0, keys.data(), keys.stride(), 0,
                          args.cache,  slots.data(),  1};
  table.write_kv(c.type, write, {0, c.seq_len});
  args.query = {query.data(), query.stride(), c.key_dim + 1};
  args.num_heads = c.heads;
  args.weights = weights.data();
  args.weights_stride = weights.stride();
  args.scale = 0.25f;
  args.pages = pages.view();
  args.first_token = 1;
  const int64_t room = round_up(c.seq_len, kBlock);
  Buffer scores(DType::kFloat32, c.query_len, room);
  args.scores = static_cast<float*>(scores.data());
  args.scores_stride = room;
  const int64_t stride = c.most + 1;
  std::vector<int32_t> chosen(static_cast<size_t>(tokens * stride), -7);
  args.chosen = chosen.data();
  args.chosen_stride = stride;
  args.most = c.most;
  for (int64_t token = 1; token < tokens; ++token) {
    for (int64_t begin = 0; begin < c.seq_len; begin += kBlock) {
      Buffer scratch(DType::kFloat32, 1, table.score_scratch_floats(args.cache));
      table.score_tokens(c.type, args, token, {begin, begin + kBlock},
                         static_cast<float*>(scratch.data()));
      scratch.check_guards("scratch of " + label);
    }
    table.choose_tokens(args, token);
  }
  cache.check_guards("cache of " + label);
  scores.check_guards("scores of " + label);
  Compare compare(DType::kFloat32, label);
  for (int64_t token = 1; token < tokens; ++token) {
    const int64_t position = pages.position_of(token);
    const int32_t* row = &chosen[static_cast<size_t>(token * stride)];
    expect(row[c.most] == -7, "%s: wrote behind what was chosen", label.c_str());
    if (position < c.most) {
      expect(row[0] == -7 && scores.untouched(token - 1, 0), "%s: chose among too few",
             label.c_str());
      continue;
    }
    const float* of_token = args.scores + (token - 1) * room;
    for (int64_t p = 0; p <= position; ++p) {
      double exact = 0.0, size = 0.0;
      float plain = 0.0f;
      for (int h = 0; h < c.heads; ++h) {
        double product = 0.0;
        float in_fp32 = 0.0f;
        for (int d = 0; d < c.key_dim; ++d) {
          const float q = query.get(token, h * (c.key_dim + 1) + d), k = keys.get(p, d);
          product += static_cast<double>(q) * static_cast<double>(k);
          in_fp32 += q * k;
        }
        const float w = weights.get(token, h) * args.scale;
        exact += static_cast<double>(w) * std::max(product, 0.0);
        size += std::fabs(static_cast<double>(w) * product);
        plain += w * std::max(in_fp32, 0.0f);
      }
      compare.add(of_token[p], exact, static_cast<double>(plain), size * 0x1p-22);
    }
    const std::vector<int32_t> expected = best(of_token, position + 1, c.most);
    expect(std::equal(expected.begin(), expected.end(), row), "%s: token %d has other tokens",
           label.c_str(), static_cast<int>(token));
  }
  compare.check();
}

void test_choice_is_that_of_the_highest_scores() {
  for_each_target_and_emulated([](const KernelTable& table) {
    int turn = 0;
    for (int64_t most : {1, 20, 69, 70, 71})
      for (int heads : {1, 24, 53})
        for (bool coarse : {false, true}) {
          Case c;
          c.type = kTypes[turn++ % 3];
          c.heads = heads;
          c.key_dim = turn % 2 ? 16 : 48;
          c.most = most;
          check_choice(table, c, coarse);
        }
  });
}
const Registration a("sparse_attention/test_choice_is_that_of_the_highest_scores",
                     test_choice_is_that_of_the_highest_scores);

void test_choice_takes_any_number() {
  for_each_target([](const KernelTable& table) {
    const float inf = HUGE_VALF;
    const std::vector<float> scores = {-1e-40f, -2.5f, inf,  0.0f, -inf,  7e30f, 1e-40f, -2.5f,
                                       0.0f,    inf,   1.0f, 0.5f, -0.5f, 1.0f,  1.5f,   -7e30f};
    const auto count = static_cast<int32_t>(scores.size());
    const std::vector<int32_t> start = {0, 1}, lens = {count}, blocks = {0};
    for (int64_t most = 1; most < count; ++most) {
      std::vector<float> row = scores;
      std::vector<int32_t> chosen(static_cast<size_t>(most), -7);
      TokenChoiceArgs args{};
      args.pages = {1, start.data(), lens.data(), blocks.data(), 1};
      args.scores = row.data();
      args.scores_stride = count;
      args.chosen = chosen.data();
      args.chosen_stride = args.most = most;
      table.choose_tokens(args, 0);
      expect(chosen == best(scores.data(), count, most), "%d of %d", static_cast<int>(most), count);
    }
  });
}
const Registration b("sparse_attention/test_choice_takes_any_number", test_choice_takes_any_number);

struct Tokens {
  Case c;
  Pages pages;
  Buffer query, rows, cache;
  std::vector<int32_t> chosen;

  explicit Tokens(const Case& of)
      : c(of),
        pages(of.query_len, of.seq_len),
        query(of.type, 1 + of.query_len, of.heads * (of.key_dim + 1)),
        rows(of.type, of.seq_len, of.key_dim),
        cache(of.type, pages.count, kBlock * of.key_dim, kBlock * of.key_dim + 2) {
    Random random(11);
    query.fill(random, -2.0, 2.0);
    rows.fill(random, -1.0, 1.0);
    for (int64_t p = 0; p < c.seq_len; ++p)
      for (int64_t d = 0; d < c.key_dim; ++d)
        cache.set_bits(pages.block_of(p), p % kBlock * c.key_dim + d, rows.bits(p, d));
    chosen.assign(static_cast<size_t>((1 + c.query_len) * c.most), -1);
    for (int64_t t = 1; t <= c.query_len; ++t) {
      std::vector<float> scores;
      for (int64_t p = 0; p <= pages.position_of(t); ++p)
        scores.push_back(static_cast<float>(random.uniform(0.0, 1.0)));
      if (pages.position_of(t) < c.most) continue;
      const std::vector<int32_t> some =
          best(scores.data(), static_cast<int64_t>(scores.size()), c.most);
      std::copy(some.begin(), some.end(), &chosen[static_cast<size_t>(t * c.most)]);
    }
  }

  // All tokens of the second request, `at_once` of them in an item; 0: their partitions apart.
  Buffer run(const KernelTable& table, int64_t at_once) {
    Buffer out(c.type, 1 + c.query_len, c.heads * (c.value_dim + 1));
    SparseAttendArgs args{};
    args.query = {query.data(), query.stride(), c.key_dim + 1};
    args.out = {out.data(), out.stride(), c.value_dim + 1};
    args.num_heads = c.heads;
    args.scale = 0.2f;
    args.cache = {cache.data(), cache.stride(), 0, kBlock, c.key_dim, c.value_dim};
    args.pages = pages.view();
    args.chosen = chosen.data();
    args.chosen_stride = args.most = c.most;
    const int64_t parts = ceil_div(c.most, kPartitionTokens);
    const int64_t blocks = ceil_div(static_cast<int64_t>(c.heads), kAttendRows);
    Buffer partials(DType::kFloat32, (1 + c.query_len) * parts * blocks,
                    kAttendRows * (c.value_dim + 2));
    args.partials = static_cast<float*>(partials.data());
    const auto with_scratch = [&](const auto& work) {
      Buffer scratch(DType::kFloat32, 1, table.sparse_attend_scratch_floats(args.cache, c.heads));
      work(static_cast<float*>(scratch.data()));
      scratch.check_guards("sparse scratch");
    };
    const bool apart = at_once == 0;
    const int64_t step = apart ? 1 : at_once;
    for (int64_t t = 1; t <= c.query_len; t += step)
      for (int64_t part = 0; part < (apart ? parts : 1); ++part)
        with_scratch([&](float* scratch) {
          table.attend_chosen(c.type, args,
                              {t, std::min<int64_t>(step, 1 + c.query_len - t), part,
                               apart ? part + 1 : parts, apart},
                              scratch);
        });
    for (int64_t t = 1; apart && t <= c.query_len; ++t)
      for (int64_t block = 0; block < blocks; ++block)
        with_scratch([&](float* scratch) {
          table.merge_chosen(c.type, args, t, block * kAttendRows, scratch);
        });
    partials.check_guards("sparse partials");
    cache.check_guards("sparse cache");
    return out;
  }

  template <class Real>
  std::vector<Real> reference_row(int64_t token, int head) const {
    const int64_t position = pages.position_of(token);
    std::vector<int64_t> seen;
    for (int64_t i = 0; i < c.most && i <= position; ++i)
      seen.push_back(position < c.most ? i : chosen[static_cast<size_t>(token * c.most + i)]);
    std::vector<Real> scores;
    Real max = -HUGE_VALF;
    for (int64_t p : seen) {
      Real s = 0;
      for (int d = 0; d < c.key_dim; ++d)
        s += static_cast<Real>(query.get(token, head * (c.key_dim + 1) + d)) *
             static_cast<Real>(rows.get(p, d));
      scores.push_back(s * static_cast<Real>(0.2f));
      max = std::max(max, scores.back());
    }
    Real sum = 0;
    std::vector<Real> out(static_cast<size_t>(c.value_dim), 0);
    for (size_t i = 0; i < seen.size(); ++i) {
      const Real p = std::exp(scores[i] - max);
      sum += p;
      for (int d = 0; d < c.value_dim; ++d)
        out[static_cast<size_t>(d)] += p * static_cast<Real>(rows.get(seen[i], d));
    }
    for (Real& o : out) o /= sum;
    return out;
  }

  void compare(const KernelTable& table, const Buffer& out) const {
    const std::string label = label_of(c);
    const bool rounded = c.type == DType::kBFloat16 && has_bf16_unit(table);
    Compare found(c.type, label);
    for (int64_t t = 1; t <= c.query_len; ++t)
      for (int h = 0; h < c.heads; ++h) {
        const std::vector<double> wide = reference_row<double>(t, h);
        const std::vector<float> plain = reference_row<float>(t, h);
        const int64_t first = h * (c.value_dim + 1);
        for (int d = 0; d < c.value_dim; ++d) {
          const auto i = static_cast<size_t>(d);
          // Probabilities are rounded to bf16, by up to 2^-9 of each at random signs.
          if (rounded) found.add_bounded(out.get(t, first + d), wide[i], 0x1p-9);
          // Scores of up to 4 are off by 2^-22 each, which plain fp32 may be lucky with.
          if (!rounded)
            found.add(out.get(t, first + d), wide[i], static_cast<double>(plain[i]), 0x1p-22);
        }
        expect(out.untouched(t, first + c.value_dim), "%s: wrote between heads", label.c_str());
      }
    expect(out.untouched(0, 0), "%s: wrote another request's token", label.c_str());
    found.check();
    out.check_guards(label);
  }
};

void test_attention_to_chosen_tokens() {
  for_each_target_and_emulated([](const KernelTable& table) {
    int turn = 0;
    const auto check = [&](Case c) {
      c.type = kTypes[turn++ % 3];
      Tokens tokens(c);
      const Buffer one = tokens.run(table, 1);
      tokens.compare(table, one);
      for (int64_t at_once : {0, 2, 7}) {
        if (at_once * c.heads > std::max(c.heads, 128)) continue;  // more than an item may have
        expect(tokens.run(table, at_once) == one, "%s: %d tokens at once change the result",
               label_of(c).c_str(), static_cast<int>(at_once));
      }
    };
    for (int heads : {1, 5, 18, 30})
      for (int64_t most : {1, 20, 65, 69, 200})
        for (int32_t query_len : {1, 10, 70}) {
          Case c;
          c.heads = heads;
          c.most = most;
          c.query_len = query_len;
          if (turn % 2) c.key_dim = c.value_dim = 48;
          check(c);
        }
    for (int64_t most : {512, 530, 1025}) {  // several partitions
      Case c;
      c.heads = 2;
      c.most = most;
      c.query_len = 3;
      c.seq_len = 1100;
      check(c);
    }
  });
}
const Registration d("sparse_attention/test_attention_to_chosen_tokens",
                     test_attention_to_chosen_tokens);

}  // namespace
}  // namespace cpu_backend::test
