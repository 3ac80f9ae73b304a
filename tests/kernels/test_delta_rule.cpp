// Gated delta nets: gates, and the rule over sequences whose states lie in slots.
#include "harness.h"

namespace cpu_backend::test {
namespace {

struct Shape {
  DType type, state;
  int64_t key_heads, heads, key_dim, value_dim;
  bool decay_of_keys = false;  // one for each of their channels

  int64_t decays() const { return decay_of_keys ? key_dim : 1; }
};

// Sequences of these lengths, in slots of a pool of six; the second is none, the last begins anew.
constexpr int kSequences = 4;
constexpr int32_t kStarts[kSequences + 1] = {0, 1, 4, 23, 25};
constexpr int32_t kSlots[kSequences] = {4, -1, 0, 2};
constexpr uint8_t kContinued[kSequences] = {1, 1, 1, 0};
constexpr int64_t kTokens = 25, kPool = 6;

struct Case {
  Shape shape;
  Buffer query, key, value, out, states, decay, beta;

  Case(const Shape& s, Random& random)
      : shape(s),
        query(s.type, kTokens, s.key_heads * s.key_dim, s.key_heads * s.key_dim + 3),
        key(s.type, kTokens, s.key_heads * s.key_dim, s.key_heads * s.key_dim + 5),
        value(s.type, kTokens, s.heads * s.value_dim, s.heads * s.value_dim + 7),
        out(s.type, kTokens, s.heads * s.value_dim, s.heads * s.value_dim + 2),
        states(s.state, kPool, s.heads * s.key_dim * s.value_dim,
               s.heads * s.key_dim * s.value_dim + 9),
        decay(DType::kFloat32, kTokens, s.heads * s.decays()),
        beta(DType::kFloat32, kTokens, s.heads) {
    query.fill(random, -1.0, 1.0);
    key.fill(random, -1.0, 1.0);
    value.fill(random, -2.0, 2.0);
    states.fill(random, -1.0, 1.0);
    decay.fill(random, -0.5, 0.0);
    beta.fill(random, 0.0, 1.0);
  }

  DeltaRuleArgs args() {
    DeltaRuleArgs a{};
    a.query = {query.data(), query.stride(), shape.key_dim};
    a.key = {key.data(), key.stride(), shape.key_dim};
    a.value = {value.data(), value.stride(), shape.value_dim};
    a.out = {out.data(), out.stride(), shape.value_dim};
    a.log_decay = static_cast<const float*>(decay.data());
    a.beta = static_cast<const float*>(beta.data());
    a.states = states.data();
    a.slot_stride = states.stride();
    a.state_head_stride = shape.key_dim * shape.value_dim;
    a.sequences.count = kSequences;
    a.sequences.starts = kStarts;
    a.sequences.slots = kSlots;
    a.sequences.slot_stride = 1;
    a.sequences.null_slot = -1;
    a.sequences.continued = kContinued;
    a.heads = static_cast<int>(shape.heads);
    a.key_heads = static_cast<int>(shape.key_heads);
    a.key_dim = shape.key_dim;
    a.value_dim = shape.value_dim;
    a.decays = shape.decays();
    a.scale = 0.5f;
    a.epsilon = 1e-6f;
    a.normalize = true;
    return a;
  }

  void run(const KernelTable& table, const DeltaRuleArgs& a) const {
    const int64_t items =
        a.sequences.count * shape.heads * ceil_div(shape.value_dim, kDeltaColumns);
    std::vector<float> scratch(
        static_cast<size_t>(table.delta_scratch_floats(shape.key_dim, shape.decays())));
    for (int64_t i = items - 1; i >= 0; --i)
      table.delta_rule(shape.type, shape.state, a, i, scratch.data());
  }
};

template <class Real>
std::vector<Real> unit_row(const Buffer& x, int64_t token, int64_t begin, int64_t size,
                           Real scale) {
  std::vector<Real> row;
  Real sum = 0;
  for (int64_t i = 0; i < size; ++i) {
    row.push_back(static_cast<Real>(x.get(token, begin + i)));
    sum += row.back() * row.back();
  }
  for (Real& v : row) v *= scale / std::sqrt(sum + static_cast<Real>(1e-6f));
  return row;
}

// One head of one sequence: [tokens, value_dim] of outputs, then the state, which is rounded to its
// type after every token as the kernel's is.
template <class Real>
std::vector<Real> follow(const Case& c, int64_t head, int sequence) {
  const Shape& s = c.shape;
  const int64_t key_head = head / (s.heads / s.key_heads);
  Buffer rounded(s.state, 1, 1);
  std::vector<Real> state, result;
  for (int64_t i = 0; i < s.key_dim * s.value_dim; ++i)
    state.push_back(
        kContinued[sequence]
            ? static_cast<Real>(c.states.get(kSlots[sequence], head * s.key_dim * s.value_dim + i))
            : Real{0});
  for (int64_t t = kStarts[sequence]; t < kStarts[sequence + 1]; ++t) {
    const auto k = unit_row<Real>(c.key, t, key_head * s.key_dim, s.key_dim, 1);
    const auto q = unit_row<Real>(c.query, t, key_head * s.key_dim, s.key_dim, Real{0.5});
    std::vector<Real> decay;
    for (int64_t i = 0; i < s.key_dim; ++i)
      decay.push_back(std::exp(
          static_cast<Real>(c.decay.get(t, s.decay_of_keys ? head * s.key_dim + i : head))));
    for (int64_t v = 0; v < s.value_dim; ++v) {
      Real recalled = 0, sum = 0;
      for (int64_t i = 0; i < s.key_dim; ++i)
        recalled += decay[static_cast<size_t>(i)] *
                    state[static_cast<size_t>(i * s.value_dim + v)] * k[static_cast<size_t>(i)];
      const Real delta = (static_cast<Real>(c.value.get(t, head * s.value_dim + v)) - recalled) *
                         static_cast<Real>(c.beta.get(t, head));
      for (int64_t i = 0; i < s.key_dim; ++i) {
        Real& at = state[static_cast<size_t>(i * s.value_dim + v)];
        at = at * decay[static_cast<size_t>(i)] + k[static_cast<size_t>(i)] * delta;
        sum += at * q[static_cast<size_t>(i)];
        if (s.state != DType::kFloat32) {
          rounded.set(0, 0, static_cast<double>(at));
          at = static_cast<Real>(rounded.get(0, 0));
        }
      }
      result.push_back(sum);
    }
  }
  result.insert(result.end(), state.begin(), state.end());
  return result;
}

void check_case(const KernelTable& table, const Shape& s, Random& random) {
  const std::string label =
      format("%s, states %s, %lld of %lld heads, %lld keys, %lld values, %lld decays",
             name_of(s.type), name_of(s.state), static_cast<long long>(s.key_heads),
             static_cast<long long>(s.heads), static_cast<long long>(s.key_dim),
             static_cast<long long>(s.value_dim), static_cast<long long>(s.decays()));
  Case c(s, random);
  const Case before = c;
  c.run(table, c.args());
  Compare outputs(s.type, label + ", outputs"), states(s.state, label + ", states");
  // A state of 16 bits may round the other way where the last fp32 bits differ, and carry that on.
  const double carried = s.state == DType::kFloat32 ? 0.0 : 16 * unit_of(s.state);
  for (int sequence = 0; sequence < kSequences; ++sequence)
    for (int64_t head = 0; head < s.heads; ++head) {
      const int64_t first = kStarts[sequence], tokens = kStarts[sequence + 1] - first;
      if (kSlots[sequence] < 0) {
        for (int64_t i = 0; i < tokens * s.value_dim; ++i)
          expect(c.out.get(first + i / s.value_dim, head * s.value_dim + i % s.value_dim) == 0.0f,
                 "%s: a sequence that is none gives no zeros", label.c_str());
        continue;
      }
      const auto wide = follow<double>(before, head, sequence);
      const auto plain = follow<float>(before, head, sequence);
      const int64_t outs = tokens * s.value_dim;
      for (int64_t i = 0; i < static_cast<int64_t>(wide.size()); ++i) {
        const auto at = static_cast<size_t>(i);
        const bool is_out = i < outs;
        const float got =
            is_out ? c.out.get(first + i / s.value_dim, head * s.value_dim + i % s.value_dim)
                   : c.states.get(kSlots[sequence], head * s.key_dim * s.value_dim + i - outs);
        (is_out ? outputs : states).add(got, wide[at], static_cast<double>(plain[at]), carried);
      }
    }
  outputs.check();
  states.check();
  for (int64_t slot : {1, 3, 5})
    for (int64_t i = 0; i < c.states.columns(); ++i)
      expect(c.states.bits(slot, i) == before.states.bits(slot, i), "%s: slot %lld is nobody's",
             label.c_str(), static_cast<long long>(slot));
  for (const Buffer* buffer : {&c.query, &c.key, &c.value, &c.out, &c.states, &c.decay, &c.beta})
    buffer->check_guards(label);
}

void test_delta_rule_matches_reference() {
  for_each_target([](const KernelTable& table) {
    Random random(31);
    for (DType type : kTypes)
      for (DType state : {DType::kFloat32, type})
        for (bool decay_of_keys : {false, true}) {
          for (int64_t size : {1, 3, 8, 17, 33})
            check_case(table, {type, state, 1, 2, size, 2 * size + 1, decay_of_keys}, random);
          check_case(table, {type, state, 2, 4, 40, 130, decay_of_keys}, random);
        }
  });
}
const Registration a("delta_rule/test_delta_rule_matches_reference",
                     test_delta_rule_matches_reference);

void check_steps(const KernelTable& table, const Shape& shape) {
  Random random(32);
  Case whole(shape, random);
  Case parts = whole;
  whole.run(table, whole.args());
  // The third sequence in steps that end within, at and beyond what is prepared at a time.
  const int32_t cuts[] = {4, 5, 20, 23};
  for (int i = 0; i < 3; ++i) {
    const int32_t starts[] = {cuts[i], cuts[i + 1]};
    DeltaRuleArgs args = parts.args();
    args.sequences.count = 1;
    args.sequences.starts = starts;
    args.sequences.slots = kSlots + 2;
    args.sequences.continued = kContinued + 2;
    parts.run(table, args);
  }
  for (int64_t t = 4; t < 23; ++t)
    for (int64_t i = 0; i < whole.out.columns(); ++i)
      expect(whole.out.bits(t, i) == parts.out.bits(t, i), "token %lld differs",
             static_cast<long long>(t));
  for (int64_t i = 0; i < whole.states.columns(); ++i)
    expect(whole.states.bits(0, i) == parts.states.bits(0, i), "the state differs");
}

void test_delta_rule_does_not_see_where_a_step_ends() {
  for_each_target([](const KernelTable& table) {
    for (DType state : {DType::kFloat32, DType::kBFloat16})
      for (bool decay_of_keys : {false, true})
        check_steps(table, {DType::kBFloat16, state, 1, 2, 24, 72, decay_of_keys});
  });
}
const Registration b("delta_rule/test_delta_rule_does_not_see_where_a_step_ends",
                     test_delta_rule_does_not_see_where_a_step_ends);

void check_gates(const KernelTable& table, DType type, int64_t heads, int64_t decays,
                 Random& random) {
  const std::string label = format("%s, %lld heads, %lld decays", name_of(type),
                                   static_cast<long long>(heads), static_cast<long long>(decays));
  const int64_t size = heads * decays;
  Buffer a(type, 3, size, size + 3), b(type, 3, heads, heads + 1), bias(type, 1, size);
  Buffer a_log(DType::kFloat32, 1, heads), decay(DType::kFloat32, 3, size),
      beta(DType::kFloat32, 3, heads);
  a.fill(random, -30.0, 30.0);
  b.fill(random, -30.0, 30.0);
  bias.fill(random, -3.0, 3.0);
  a_log.fill(random, -2.0, 3.0);
  DeltaGateArgs args{};
  args.a = a.data();
  args.a_stride = a.stride();
  args.b = b.data();
  args.b_stride = b.stride();
  args.a_log = static_cast<const float*>(a_log.data());
  args.bias = bias.data();
  args.bias_is_float = type == DType::kFloat32;
  args.log_decay = static_cast<float*>(decay.data());
  args.beta = static_cast<float*>(beta.data());
  args.heads = heads;
  args.decays = decays;
  args.beta_range = 2.0f;
  table.delta_gates(type, args, {1, 3});
  for (int64_t t = 1; t < 3; ++t) {
    for (int64_t i = 0; i < size; ++i) {
      const double x = static_cast<double>(a.get(t, i)) + static_cast<double>(bias.get(0, i));
      const double exact =
          -std::exp(static_cast<double>(a_log.get(0, i / decays))) * std::log1p(std::exp(x));
      // The sum a + bias is rounded: half an ulp of up to 33, in the exponent.
      expect(std::abs(decay.get(t, i) - exact) <= 6e-6 * std::abs(exact), "%s: decay",
             label.c_str());
    }
    for (int64_t h = 0; h < heads; ++h) {
      const double gate = 2 / (1 + std::exp(-static_cast<double>(b.get(t, h))));
      expect(std::abs(beta.get(t, h) - gate) <= 1e-6 * gate, "%s: beta", label.c_str());
    }
  }
  for (int64_t i = 0; i < size; ++i)
    expect(decay.untouched(0, i), "%s: another slice's token", label.c_str());
  for (int64_t h = 0; h < heads; ++h)
    expect(beta.untouched(0, h), "%s: another slice's token", label.c_str());
  for (const Buffer* buffer : {&a, &b, &bias, &a_log, &decay, &beta}) buffer->check_guards(label);
}

void test_delta_gates_match_reference() {
  for_each_target([](const KernelTable& table) {
    Random random(33);
    for (DType type : kTypes) {
      for (int64_t heads : odd_sizes()) check_gates(table, type, heads, 1, random);
      for (int64_t decays : {3, 8, 17, 33}) check_gates(table, type, 5, decays, random);
    }
  });
}
const Registration c("delta_rule/test_delta_gates_match_reference",
                     test_delta_gates_match_reference);

}  // namespace
}  // namespace cpu_backend::test
