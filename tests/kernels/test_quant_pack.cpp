// The packed form of quantized weights: every source of codes, and the layout as documented.
#include "quant_case.h"

namespace cpu_backend::test {
namespace {

// Codes as one of the checkpoints' bit streams.
struct Stream {
  std::vector<uint32_t> words;
  int64_t n_stride, k_stride;
};

Stream stream_of(const std::vector<uint8_t>& codes, int64_t n, int64_t k, int bits,
                 CodeOrder order) {
  const bool along_k = order == CodeOrder::kWordsOfK;
  const int64_t words = ceil_div((along_k ? k : n) * bits, 32) + 1;  // one that must not be read
  // Along k the words of a column are n apart, as GPTQ has them; along n they are neighbours.
  Stream stream{{}, 1, along_k ? n : words};
  stream.words.assign(static_cast<size_t>(words * (along_k ? n : k)), 0);
  constexpr int kAwq[] = {0, 4, 1, 5, 2, 6, 3, 7};
  for (int64_t c = 0; c < n; ++c)
    for (int64_t i = 0; i < k; ++i) {
      int64_t place = along_k ? i : c;
      if (order == CodeOrder::kWordsOfNAwq) place = place / 8 * 8 + kAwq[place % 8];
      for (int bit = 0; bit < bits; ++bit) {
        const int64_t at = place * bits + bit;
        const int64_t word = along_k ? at / 32 * n + c : i * words + at / 32;
        const uint32_t value = codes[static_cast<size_t>(c * k + i)] >> bit & 1;
        stream.words[static_cast<size_t>(word)] |= value << (at % 32);
      }
    }
  return stream;
}

// Whatever the source, the same codes give the same packed bytes as codes in bytes do.
void test_pack_quant_reads_every_source() {
  for_each_target([](const KernelTable& table) {
    for (int64_t n : {1, 8, 17, 40}) {
      for (int64_t k : {1, 10, 33, 64}) {
        for (int source_bits : {2, 3, 4, 5, 6, 8}) {
          for (int bits : {2, 3, 4, 8}) {
            if (bits < source_bits) continue;
            const int add = (1 << (bits - 1)) - (1 << (source_bits - 1));
            const QuantLayout layout{
                bits, ZeroKind::kMiddle,       DType::kFloat32, Activations::kInt16, n,
                k,    std::min<int64_t>(k, 16)};
            QuantProblem problem(layout, DType::kFloat32, 1);
            std::vector<uint8_t> raw(problem.codes.size());
            for (size_t i = 0; i < raw.size(); ++i) {
              raw[i] = static_cast<uint8_t>(problem.codes[i] & ((1 << source_bits) - 1));
              problem.codes[i] = static_cast<uint8_t>(raw[i] + add);
            }
            const std::vector<unsigned char> expected = problem.pack(table);
            for (CodeOrder order : {CodeOrder::kBytes, CodeOrder::kWordsOfK, CodeOrder::kWordsOfN,
                                    CodeOrder::kWordsOfNAwq}) {
              if (order == CodeOrder::kWordsOfNAwq && (source_bits != 4 || n % 8)) continue;
              const Stream stream = stream_of(raw, n, k, source_bits, order);
              std::vector<unsigned char> packed(expected.size(), 0x5a);
              QuantPackArgs args{};
              args.layout = layout;
              args.order = order;
              args.source_bits = source_bits;
              args.add = add;
              const bool bytes = order == CodeOrder::kBytes;
              args.codes = bytes ? static_cast<const void*>(raw.data()) : stream.words.data();
              args.n_stride = bytes ? k : stream.n_stride;
              args.k_stride = bytes ? 1 : stream.k_stride;
              args.scales = problem.scales.data();
              args.scale_group_stride = problem.scales.stride();
              args.scale_n_stride = 1;
              args.packed = packed.data();
              table.pack_quant(args, {0, problem.panels(table)});
              expect(packed == expected, "order %d, %d bits, n %lld k %lld",
                     static_cast<int>(order), source_bits, static_cast<long long>(n),
                     static_cast<long long>(k));
            }
          }
        }
      }
    }
  });
}
const Registration a("quant_pack/test_pack_quant_reads_every_source",
                     test_pack_quant_reads_every_source);

// The layout that kernels/formats/integer_pack.h documents, written out again.
void test_pack_quant_follows_the_documented_layout() {
  uint16_t probe = 1;
  unsigned char first;
  memcpy(&first, &probe, 1);
  const int even = first ? 0 : 2;  // the byte of a word where channel 0 lies
  for_each_target([&](const KernelTable& table) {
    const int64_t width = table.panel_width;
    for (int bits : {2, 3, 4, 8}) {
      for (ZeroKind zero :
           {ZeroKind::kMiddle, ZeroKind::kPoint, ZeroKind::kOffset, ZeroKind::kLevels}) {
        const bool levels = zero == ZeroKind::kLevels;
        if (levels && bits != 4) continue;
        const QuantLayout layout{bits,
                                 zero,
                                 DType::kFloat32,
                                 Activations::kInt16,
                                 width + 2,
                                 levels ? 143 : 43,
                                 levels ? 64 : 20};
        const QuantProblem problem(layout, DType::kFloat32, 1, true);
        const std::vector<unsigned char> packed = problem.pack(table);
        size_t at = 0;
        const auto next_word = [&] {
          uint32_t word;
          memcpy(&word, packed.data() + at, 4);
          at += 4;
          return word;
        };
        for (int64_t p = 0; p < problem.panels(table); ++p) {
          for (int64_t begin = 0; begin < layout.k; begin += layout.group) {
            const int64_t g = begin / layout.group;
            const auto check_row = [&](const Buffer& source, const char* what) {
              for (int64_t c = p * width; c < (p + 1) * width; ++c)
                expect(bits_float(next_word()) == (c < layout.n ? source.get(g, c) : 0.0f), "%s",
                       what);
            };
            check_row(problem.scales, "scale");
            if (zero == ZeroKind::kPoint || zero == ZeroKind::kOffset)
              check_row(problem.zeros, "zero");
            const int64_t end = std::min(begin + layout.group, layout.k);
            for (int64_t k = begin; k < end; k += 8) {
              for (int64_t c = p * width; levels && k % 32 == 0 && c < (p + 1) * width; ++c) {
                uint16_t level;
                memcpy(&level, packed.data() + at, 2);
                at += 2;
                expect(level == (c < layout.n
                                     ? problem.levels[static_cast<size_t>(k / 32 * layout.n + c)]
                                     : 0),
                       "level of column %lld", static_cast<long long>(c));
              }
              const auto check_code = [&](int64_t c, int64_t depth, uint32_t code) {
                const bool real = c < layout.n && depth < end && problem.channel(depth) >= 0;
                expect(code == (real ? problem.code(c, depth) : 0), "column %lld depth %lld",
                       static_cast<long long>(c), static_cast<long long>(depth));
              };
              if (bits < 4) {
                const unsigned char* bytes = packed.data() + at;
                at += static_cast<size_t>(bits * width);
                for (int64_t c = 0; c < width; ++c)
                  for (int i = 0; i < 8; ++i) {
                    uint32_t half = bytes[2 * c + i % 2];
                    if (bits == 3) {
                      const int64_t both = bytes[2 * width + 2 * (c % (width / 2)) + i % 2];
                      half |= static_cast<uint32_t>(c < width / 2 ? both & 15 : both >> 4) << 8;
                    }
                    const uint32_t code = half >> (i / 2 * bits) & ((1u << bits) - 1u);
                    check_code(p * width + c, k + i, code);
                  }
              }
              for (int64_t half = 0; half < bits / 4; ++half)
                for (int64_t c = p * width; c < (p + 1) * width; ++c) {
                  const uint32_t word = next_word();
                  for (int i = 0; i < 32 / bits; ++i) {
                    const int64_t depth = k + 4 * half + i;
                    const int byte = ((i & 1) * 2 ^ even) + (i >> 1 & 1);
                    const uint32_t code = word >> (8 * byte + (i >= 4 ? 4 : 0)) & ((1 << bits) - 1);
                    check_code(c, depth, code);
                  }
                }
            }
          }
        }
        // What follows the last panel is less than a matrix tile reads of it.
        expect(packed.size() >= at && packed.size() - at < static_cast<size_t>(64 * width),
               "packed size");
        for (; at < packed.size(); ++at) expect(packed[at] == 0, "after the last panel");
      }
    }
  });
}
const Registration b("quant_pack/test_pack_quant_follows_the_documented_layout",
                     test_pack_quant_follows_the_documented_layout);

}  // namespace
}  // namespace cpu_backend::test
