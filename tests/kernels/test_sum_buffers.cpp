// Sums over ranks: exact, because their order and their one rounding are part of the contract.
#include "harness.h"

namespace cpu_backend::test {
namespace {

float rounded(DType type, float x) {
  Buffer one(type, 1, 1);
  one.set(0, 0, x);
  return one.get(0, 0);
}

void check_sum(const KernelTable& table, DType type, int64_t size, int count, int in_place,
               Random& random) {
  const std::string label = format("%s size %lld of %d buffers, in place of %d", name_of(type),
                                   static_cast<long long>(size), count, in_place);
  std::vector<Buffer> buffers;
  for (int s = 0; s < count; ++s) {
    buffers.emplace_back(type, 1, size);
    buffers.back().fill(random, -2.0, 2.0);
  }
  std::vector<float> expected;
  for (int64_t i = 0; i < size; ++i) {
    float sum = buffers[0].get(0, i);
    for (int s = 1; s < count; ++s) sum += buffers[static_cast<size_t>(s)].get(0, i);
    expected.push_back(rounded(type, sum));
  }
  Buffer apart(type, 1, size);
  Buffer& out = in_place < 0 ? apart : buffers[static_cast<size_t>(in_place)];
  const Buffer before = out;
  std::vector<ConstData> sources;
  for (const Buffer& buffer : buffers) sources.push_back(buffer.data());
  const Slice slice = split(size, 3, 1);  // the middle third; the rest belongs to other threads
  table.sum_buffers(type, {sources.data(), count, out.data()}, slice);
  for (int64_t i = 0; i < size; ++i) {
    const bool mine = i >= slice.begin && i < slice.end;
    if (mine)
      expect(out.get(0, i) == expected[static_cast<size_t>(i)], "%s: [%lld] is %.9g, not %.9g",
             label.c_str(), static_cast<long long>(i), out.get(0, i),
             expected[static_cast<size_t>(i)]);
    if (!mine)
      expect(out.bits(0, i) == before.bits(0, i), "%s: wrote outside its slice", label.c_str());
  }
  out.check_guards(label);
}

void test_sum_is_exact_in_the_order_of_its_sources() {
  Random random(5);
  for_each_target([&](const KernelTable& table) {
    for (DType type : kTypes)
      for (int64_t size : odd_sizes())
        for (int count : {1, 2, 3, 5})
          for (int in_place : {-1, 0, count - 1})
            check_sum(table, type, 3 * size, count, in_place, random);
  });
}

void test_sum_keeps_the_order_of_ranks() {
  for_each_target([&](const KernelTable& table) {
    // In fp32, (1e8 + -1e8) + 1 is 1, and 1e8 + (-1e8 + 1) is 0.
    const float x[] = {1e8f}, y[] = {-1e8f}, z[] = {1.0f};
    float out[] = {7.0f};
    const ConstData forth[] = {x, y, z};
    table.sum_buffers(DType::kFloat32, {forth, 3, out}, {0, 1});
    expect(out[0] == 1.0f, "x + y + z is %g", out[0]);
    const ConstData back[] = {z, y, x};
    table.sum_buffers(DType::kFloat32, {back, 3, out}, {0, 1});
    expect(out[0] == 0.0f, "z + y + x is %g", out[0]);
  });
}

const Registration kTests[] = {
    {"sum_buffers/test_sum_is_exact_in_the_order_of_its_sources",
     test_sum_is_exact_in_the_order_of_its_sources},
    {"sum_buffers/test_sum_keeps_the_order_of_ranks", test_sum_keeps_the_order_of_ranks},
};

}  // namespace
}  // namespace cpu_backend::test
