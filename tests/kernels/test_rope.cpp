// Rotary position embedding, both pairings, part of a head, and back.
#include "harness.h"

namespace cpu_backend::test {
namespace {

constexpr int64_t kTokens = 4;
constexpr int64_t kPositions = 37;

struct Case {
  DType type;
  int rotary_dim, head_dim, offset;
  bool neox, inverse, with_key;
};

Buffer angles(DType type, int rotary_dim) {
  Buffer table(type, kPositions, rotary_dim);
  const int half = rotary_dim / 2;
  for (int64_t p = 0; p < kPositions; ++p)
    for (int i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * std::pow(10000.0, -2.0 * i / rotary_dim);
      table.set(p, i, std::cos(angle));
      table.set(p, half + i, std::sin(angle));
    }
  return table;
}

// One head of `x` against the rotated head of `before`.
void check_head(const Case& c, const Buffer& table, int64_t position, const Buffer& before,
                const Buffer& x, int64_t token, int64_t first, Compare& compare) {
  const int half = c.rotary_dim / 2;
  for (int i = 0; i < c.head_dim; ++i) {
    const int channel = i - c.offset;
    if (channel < 0 || channel >= c.rotary_dim) {
      expect(x.bits(token, first + i) == before.bits(token, first + i),
             "channel %d is not rotated but changed", i);
      continue;
    }
    const bool upper = c.neox ? channel >= half : channel % 2 == 1;
    const int pair = c.neox ? channel % half : channel / 2;
    const int partner = c.neox ? (upper ? i - half : i + half) : (upper ? i - 1 : i + 1);
    const double cos = table.get(position, pair);
    const double sin = (c.inverse ? -1.0 : 1.0) * table.get(position, half + pair);
    const double own = before.get(token, first + i) * cos;
    const double other = (upper ? 1.0 : -1.0) * before.get(token, first + partner) * sin;
    compare.add_bounded(x.get(token, first + i), own + other,
                        2.0 * 0x1p-24 * (std::fabs(own) + std::fabs(other)));
  }
}

void check_case(const KernelTable& table, const Case& c) {
  constexpr int kHeads = 3;
  constexpr int kKvHeads = 2;
  const int64_t positions[kTokens] = {5, 0, 36, 11};
  const int64_t head_stride = c.head_dim + 2;  // heads apart, with two foreign elements between
  const std::string label =
      format("%s rotary %d of %d at %d neox %d inverse %d key %d", name_of(c.type), c.rotary_dim,
             c.head_dim, c.offset, c.neox, c.inverse, c.with_key);
  Random random(static_cast<uint64_t>(c.rotary_dim));
  const Buffer cos_sin = angles(c.type, c.rotary_dim);
  Buffer query(c.type, kTokens, kHeads * head_stride, kHeads * head_stride + 5);
  Buffer key(c.type, kTokens, kKvHeads * head_stride, kKvHeads * head_stride + 3);
  query.fill(random, -2.0, 2.0);
  key.fill(random, -2.0, 2.0);
  const Buffer old_query = query;
  const Buffer old_key = key;

  RopeArgs args{};
  args.positions = positions;
  args.cos_sin = cos_sin.data();
  args.query = {query.data(), query.stride(), head_stride};
  args.num_heads = kHeads;
  args.key = {c.with_key ? key.data() : nullptr, key.stride(), head_stride};
  args.num_kv_heads = kKvHeads;
  args.rotary_dim = c.rotary_dim;
  args.rope_offset = c.offset;
  args.neox = c.neox;
  args.inverse = c.inverse;
  table.rope(c.type, args, {1, kTokens});

  Compare compare(c.type, label);
  for (int64_t t = 1; t < kTokens; ++t) {
    for (int h = 0; h < kHeads; ++h)
      check_head(c, cos_sin, positions[t], old_query, query, t, h * head_stride, compare);
    for (int h = 0; h < kKvHeads && c.with_key; ++h)
      check_head(c, cos_sin, positions[t], old_key, key, t, h * head_stride, compare);
  }
  compare.check();
  for (int64_t i = 0; i < query.columns(); ++i)
    expect(query.bits(0, i) == old_query.bits(0, i), "%s: a token outside the slice changed",
           label.c_str());
  for (int h = 0; h < kHeads; ++h)
    for (int64_t gap = c.head_dim; gap < head_stride; ++gap)
      expect(query.bits(2, h * head_stride + gap) == old_query.bits(2, h * head_stride + gap),
             "%s: an element between heads changed", label.c_str());
  if (!c.with_key) expect(key == old_key, "%s: the key changed", label.c_str());
  query.check_guards(label);
  key.check_guards(label);
}

void test_rope_matches_reference() {
  for_each_target([](const KernelTable& table) {
    for (DType type : kTypes)
      for (int rotary_dim : {2, 4, 6, 10, 16, 30, 32, 34, 64, 80, 128})
        for (int flags = 0; flags < 8; ++flags) {
          const bool neox = (flags & 1) != 0;
          const bool inverse = (flags & 2) != 0;
          const bool whole = (flags & 4) != 0;
          check_case(table, {type, rotary_dim, whole ? rotary_dim : rotary_dim + 7, whole ? 0 : 4,
                             neox, inverse, whole});
        }
  });
}
const Registration a("rope/test_rope_matches_reference", test_rope_matches_reference);

}  // namespace
}  // namespace cpu_backend::test
