// Writing keys and values into the paged cache: a mover, or a quantizer, so every bit counts.
#include "harness.h"
#include "kv_codes.h"

namespace cpu_backend::test {
namespace {

// Where (row, column) of keys or values lies in a page: panels, the last one as narrow as the rest.
int64_t place_in_panels(const KernelTable& table, Words words, int64_t row, int64_t column,
                        int64_t depth, int64_t columns) {
  const int64_t panel = table.panel_width;
  const int64_t before = column / panel * panel;
  const int64_t width = std::min(columns - before, panel);
  return before * depth + documented_offset(table, words, row, column - before, width);
}

struct Case {
  DType type;
  int block_size, head_dim;
};

void check_case(const KernelTable& table, const Case& c) {
  constexpr int kHeads = 3;
  constexpr int64_t kBlocks = 8;
  const std::string label =
      format("%s block %d head %d", name_of(c.type), c.block_size, c.head_dim);
  const int64_t n = c.block_size;
  const int64_t d = c.head_dim;
  const int64_t half = n * d;
  // Both sides of block boundaries, out of order and side by side; negative slots are padding.
  std::vector<int64_t> slots = {3 * n - 1, -1, 3 * n, 0, n - 1, n, -7, 1, 2, 4, 5, 6};
  for (int64_t i = -1; i < 19; ++i) slots.push_back(6 * n + i);  // squares of keys among them
  for (int64_t i = 0; i < 16; ++i)  // none: two tokens have changed places
    slots.push_back(4 * n + (i == 1 ? 2 : i == 2 ? 1 : i));
  for (int64_t slot : {kBlocks * n - 1, 2 * n + 4, 2 * n + 5}) slots.push_back(slot);
  const int64_t tokens = static_cast<int64_t>(slots.size());
  const int64_t head_stride = d + 3;
  Buffer key(c.type, tokens, kHeads * head_stride, kHeads * head_stride + 1);
  Buffer value(c.type, tokens, kHeads * head_stride, kHeads * head_stride + 2);
  Random random(51);
  for (Buffer* buffer : {&key, &value})
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t i = 0; i < buffer->columns(); ++i)  // any bits, NaN and subnormals too
        buffer->set_bits(t, i, static_cast<uint32_t>(random.bits()));
  Buffer cache(c.type, kBlocks * kHeads, 2 * half, 2 * half + 4);  // blocks and heads apart
  WriteKvArgs args{};
  args.key = {key.data(), key.stride(), head_stride};
  args.value = {value.data(), value.stride(), head_stride};
  args.cache = {cache.data(), kHeads * cache.stride(), cache.stride(), c.block_size, c.head_dim,
                c.head_dim};
  args.slots = slots.data();
  args.num_kv_heads = kHeads;
  const int64_t end = tokens - 1;  // the last token belongs to another slice
  table.write_kv(c.type, args, {0, 4});
  table.write_kv(c.type, args, {4, end});

  std::vector<int64_t> token_of(static_cast<size_t>(kBlocks * n), -1);
  for (int64_t t = 0; t < end; ++t)
    if (slots[static_cast<size_t>(t)] >= 0)
      token_of[static_cast<size_t>(slots[static_cast<size_t>(t)])] = t;
  const uint32_t mask = c.type == DType::kFloat32 ? 0xffffffffu : 0xffffu;
  for (int64_t slot = 0; slot < kBlocks * n; ++slot) {
    const int64_t t = token_of[static_cast<size_t>(slot)];
    for (int64_t h = 0; h < kHeads; ++h) {
      const int64_t row = slot / n * kHeads + h;
      for (int64_t i = 0; i < d; ++i) {
        const int64_t k = place_in_panels(table, words_of(c.type), i, slot % n, d, n);
        const int64_t v = half + place_in_panels(table, words_of(c.type), slot % n, i, n, d);
        const bool ok = t < 0
                            ? cache.untouched(row, k) && cache.untouched(row, v)
                            : cache.bits(row, k) == (key.bits(t, h * head_stride + i) & mask) &&
                                  cache.bits(row, v) == (value.bits(t, h * head_stride + i) & mask);
        if (!expect(ok, "%s: slot %lld head %lld channel %lld", label.c_str(),
                    static_cast<long long>(slot), static_cast<long long>(h),
                    static_cast<long long>(i)))
          return;
      }
    }
  }
  cache.check_guards(label);
}

void test_write_kv_moves_every_bit() {
  for_each_target([](const KernelTable& table) {
    for (DType type : kTypes)
      for (int block_size : {16, 32, 48, 128})
        for (int head_dim : {16, 80, 128}) check_case(table, {type, block_size, head_dim});
  });
}
const Registration a("kv_cache/test_write_kv_moves_every_bit", test_write_kv_moves_every_bit);

// Codes, scales and their places, written out again from kernels/kv_cache.h.
void check_codes(const KernelTable& table, KvType kv, const Case& c) {
  constexpr int kHeads = 3;
  constexpr int64_t kBlocks = 4;
  const std::string label =
      format("%s of %s block %d head %d", name_of(kv), name_of(c.type), c.block_size, c.head_dim);
  const Words words = kv == KvType::kInt8 ? Words::kIntegers : Words::kPairs;
  const int64_t n = c.block_size;
  const int64_t d = c.head_dim;
  const std::vector<int64_t> slots = {3 * n - 1, -1, 0, n, 1, 2 * n + 5, kBlocks * n - 1, 3 * n};
  const int64_t tokens = static_cast<int64_t>(slots.size());
  Buffer rows[2] = {{c.type, tokens, kHeads * (d + 3), kHeads * (d + 3) + 1},
                    {c.type, tokens, kHeads * (d + 3), kHeads * (d + 3) + 1}};
  Random random(52);
  for (Buffer& buffer : rows) {
    buffer.fill(random, -9.0, 9.0);
    for (int64_t i = 0; i < d; ++i) buffer.set(2, i, 0.0);  // no scale
    buffer.set(3, 1, 3e4);                                  // saturates
    buffer.set(3, 2, -3e4);
    buffer.set(4, 3, std::nan(""));
    buffer.set(5, 4, HUGE_VAL);
    buffer.set(6, 0, 1e-6);
  }
  const float scale[2] = {0.043f, 1.7f};
  const int64_t page = page_bytes(kv, c.type, n, 2 * d);
  Buffer cache(DType::kFloat32, kBlocks * kHeads, page / 4, page / 4 + 2);
  WriteKvArgs args{};
  args.key = {rows[0].data(), rows[0].stride(), d + 3};
  args.value = {rows[1].data(), rows[1].stride(), d + 3};
  args.cache = {cache.data(),       kHeads * cache.stride() * 4,
                cache.stride() * 4, c.block_size,
                c.head_dim,         c.head_dim};
  args.cache.type = kv;
  args.cache.key_scale = scale[0];
  args.cache.value_scale = scale[1];
  args.slots = slots.data();
  args.num_kv_heads = kHeads;
  const Buffer before = cache;
  table.write_kv(c.type, args, {0, 3});
  table.write_kv(c.type, args, {3, tokens});

  const auto bytes_of_row = [](const Buffer& buffer, int64_t row) {
    return static_cast<const unsigned char*>(buffer.data()) + row * buffer.stride() * 4;
  };
  std::vector<int64_t> token_of(static_cast<size_t>(kBlocks * n), -1);
  for (int64_t t = 0; t < tokens; ++t)
    if (slots[static_cast<size_t>(t)] >= 0)
      token_of[static_cast<size_t>(slots[static_cast<size_t>(t)])] = t;
  for (int64_t slot = 0; slot < kBlocks * n; ++slot) {
    const int64_t t = token_of[static_cast<size_t>(slot)];
    for (int64_t h = 0; h < kHeads; ++h) {
      const unsigned char* got = bytes_of_row(cache, slot / n * kHeads + h);
      const unsigned char* old = bytes_of_row(before, slot / n * kHeads + h);
      for (int side = 0; side < 2; ++side) {
        std::vector<float> x;
        for (int64_t i = 0; t >= 0 && i < d; ++i) x.push_back(rows[side].get(t, h * (d + 3) + i));
        const float by = kv == KvType::kInt8 ? int8_scale_of(x) : scale[side];
        for (int64_t i = 0; i < d; ++i) {
          const int64_t at = side == 0 ? place_in_panels(table, words, i, slot % n, d, n)
                                       : n * d + place_in_panels(table, words, slot % n, i, n, d);
          if (t >= 0 && std::isnan(by)) continue;  // any codes: the scale says it
          const uint32_t expected = t < 0 ? old[at] : code_of(kv, x[static_cast<size_t>(i)], by);
          if (!expect(got[at] == expected, "%s: slot %lld side %d channel %lld is %02x, not %02x",
                      label.c_str(), static_cast<long long>(slot), side, static_cast<long long>(i),
                      got[at], expected))
            return;
        }
        if (kv != KvType::kInt8) continue;
        const int64_t at = 2 * n * d + (side * n + slot % n) * 4;
        float stored, untouched;
        memcpy(&stored, got + at, 4);
        memcpy(&untouched, old + at, 4);
        const bool ok = t < 0            ? float_bits(stored) == float_bits(untouched)
                        : std::isnan(by) ? std::isnan(stored)
                                         : stored == by;
        expect(ok, "%s: slot %lld side %d has scale %a, not %a", label.c_str(),
               static_cast<long long>(slot), side, static_cast<double>(stored),
               static_cast<double>(by));
      }
    }
  }
  cache.check_guards(label);
}

void test_write_kv_rounds_codes_exactly() {
  for_each_target([](const KernelTable& table) {
    for (KvType kv : kQuantizedKv)
      for (DType type : kTypes)
        for (int block_size : {16, 48})
          for (int head_dim : {16, 80}) check_codes(table, kv, {type, block_size, head_dim});
  });
}
const Registration b("kv_cache/test_write_kv_rounds_codes_exactly",
                     test_write_kv_rounds_codes_exactly);

}  // namespace
}  // namespace cpu_backend::test
