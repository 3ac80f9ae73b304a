// A quantized linear layer with its operands, and its definition in plain C++: what csrc/core/
// quant.h says, without a word of the kernels' own layouts.
#pragma once

#include <memory>

#include "core/quant.h"
#include "harness.h"

namespace cpu_backend::test {

inline const char* name_of(Activations activations) {
  constexpr const char* kNames[] = {
      "int16", "int8", "int8 token", "int8 token azp", "int8 static", "int8 static azp", "float"};
  return kNames[static_cast<int>(activations)];
}
inline const char* name_of(ZeroKind zero) {
  constexpr const char* kNames[] = {"middle", "point", "offset", "levels"};
  return kNames[static_cast<int>(zero)];
}

// A row as integers: x is about scale * (code - zero), the zero point already subtracted here.
struct IntegerRow {
  std::vector<double> codes;   // per k of the packed weight
  std::vector<double> scales;  // per k as well
};

// Activations as the kernels keep them.
struct QuantizedRows {
  std::vector<unsigned char> bytes;
  QuantRows rows;

  QuantizedRows(const KernelTable& table, const QuantLayout& layout, int64_t m, int64_t tile_rows)
      : bytes(static_cast<size_t>(m * table.quant_row_bytes(layout)), 0xa5) {
    rows = {bytes.data(), m, std::min(tile_rows, table.quant_tile_rows)};
  }
};

struct QuantProblem {
  QuantLayout layout;
  DType type;  // of activations, bias and output
  int64_t m, channels_in;
  Buffer x, scales, zeros, bias;
  std::vector<uint8_t> codes;    // [n][channels_in]
  std::vector<uint16_t> levels;  // [pieces of kLevelChannels][n]
  std::vector<int32_t> channels;
  float static_scale = 0.031f;
  int32_t static_zero = -7;

  QuantProblem(QuantLayout layout_, DType type_, int64_t m_, bool act_order = false)
      : layout(layout_),
        type(type_),
        m(m_),
        channels_in(act_order ? layout_.k - layout_.k / 5 : layout_.k),
        x(type_, m_, channels_in, channels_in + 3),
        scales(layout_.scale_type, layout_.groups(), layout_.n, layout_.n + 2),
        zeros(layout_.scale_type, layout_.groups(), layout_.n, layout_.n + 1),
        bias(type_, 1, layout_.n),
        codes(static_cast<size_t>(layout_.n * channels_in)) {
    Random random(
        static_cast<uint64_t>(m * 1000003 + layout.n * 1009 + layout.k * 7 + layout.bits));
    x.fill(random, -1.0, 1.0);
    for (int64_t r = 0; r < m; ++r)  // rows of different size, some with outliers
      for (int64_t i = 0; i < channels_in; ++i)
        x.set(r, i, x.get(r, i) * (r % 3 + 0.5) * (random.below(40) == 0 ? 9.0 : 1.0));
    scales.fill(random, 0.5, 1.5);
    bias.fill(random, -1.0, 1.0);
    for (int64_t g = 0; g < layout.groups(); ++g)
      for (int64_t c = 0; c < layout.n; ++c)
        zeros.set(g, c,
                  layout.zero == ZeroKind::kPoint
                      ? static_cast<double>(random.below((1 << layout.bits) + 1))
                      : random.uniform(-2.0, 2.0));
    levels.resize(static_cast<size_t>(ceil_div(layout.k, QuantLayout::kLevelChannels) * layout.n));
    for (uint16_t& level : levels) {
      const int64_t step = random.below(18);
      level = static_cast<uint16_t>(step + 256 * random.below(256 - 15 * step));
    }
    for (uint8_t& code : layout.table) code = static_cast<uint8_t>(random.below(256));
    for (uint8_t& code : codes) {
      code = static_cast<uint8_t>(random.below(1 << layout.bits));
      if (layout.kind == CodeKind::kFp8 && (code & 0x7f) == 0x7f) code = 0x7e;  // no NaN
    }
    if (!act_order) return;
    // A permutation with gaps: channels of x in any order, -1 in between.
    for (int64_t i = 0; i < layout.k; ++i)
      channels.push_back(i < channels_in ? static_cast<int32_t>(i) : -1);
    for (int64_t i = layout.k - 1; i > 0; --i)
      std::swap(channels[static_cast<size_t>(i)],
                channels[static_cast<size_t>(random.below(i + 1))]);
  }

  int64_t channel(int64_t k) const {
    return channels.empty() ? k : channels[static_cast<size_t>(k)];
  }
  const int32_t* channel_list() const { return channels.empty() ? nullptr : channels.data(); }
  int64_t panels(const KernelTable& table) const {
    return table.panel_count(layout.n, layout.parts);
  }

  // 0 where it has no channel.
  uint8_t code(int64_t column, int64_t k) const {
    return channel(k) < 0 ? uint8_t{0}
                          : codes[static_cast<size_t>(column * channels_in + channel(k))];
  }
  // What the weight adds up to without its scale: code - zero, and 0 where it has no channel.
  double weight(int64_t column, int64_t k) const {
    if (channel(k) < 0) return 0.0;
    const uint8_t code = this->code(column, k);
    if (layout.kind == CodeKind::kFp8) return to_float(static_cast<fp8_t>(code));
    if (layout.kind == CodeKind::kTable) return layout.table[code] - 128.0;
    const double q = code;
    const int64_t g = k / layout.group;
    switch (layout.zero) {
      case ZeroKind::kMiddle:
        return q - (1 << (layout.bits - 1));
      case ZeroKind::kPoint:
        return q - zeros.get(g, column);
      case ZeroKind::kLevels: {
        const int level =
            levels[static_cast<size_t>(k / QuantLayout::kLevelChannels * layout.n + column)];
        return (level & 255) * q + (level >> 8) - 128;
      }
      default:
        return q + zeros.get(g, column) / scales.get(g, column);
    }
  }

  // At least the magnitude of what a kernel adds up for it: with kOffset code and zero apart.
  double weight_bound(int64_t column, int64_t k) const {
    const double weight_now = std::fabs(weight(column, k));
    if (layout.zero != ZeroKind::kOffset) return weight_now;
    return weight_now + 2.0 * std::fabs(zeros.get(k / layout.group, column) /
                                        scales.get(k / layout.group, column));
  }

  std::vector<unsigned char> pack(const KernelTable& table) const {
    std::vector<unsigned char> packed(static_cast<size_t>(table.quant_packed_bytes(layout)), 0xa5);
    QuantPackArgs args{};
    args.layout = layout;
    args.order = CodeOrder::kBytes;
    args.source_bits = 8;
    args.codes = codes.data();
    args.n_stride = channels_in;
    args.k_stride = 1;
    args.channels = channel_list();
    args.scales = scales.data();
    args.scale_group_stride = scales.stride();
    args.scale_n_stride = 1;
    args.zeros = zeros.data();
    args.zero_group_stride = zeros.stride();
    args.zero_n_stride = 1;
    if (layout.zero == ZeroKind::kLevels) {
      args.zeros = levels.data();
      args.zero_group_stride = layout.n;
    }
    args.packed = packed.data();
    for (int64_t p = panels(table) - 1; p >= 0; --p) table.pack_quant(args, {p, p + 1});
    return packed;
  }

  QuantizedRows quantize(const KernelTable& table, int64_t tile_rows) const {
    const QuantLayout multiplied = layout.multiplied(m);
    QuantizedRows to(table, multiplied, m, tile_rows);
    const QuantRowsArgs args{multiplied,     x.data(),      x.stride(),   channels_in,
                             channel_list(), &static_scale, &static_zero, to.rows};
    for (int64_t r = m - 1; r >= 0; --r) table.quantize_rows(type, args, {r, r + 1});
    return to;
  }

  GemmArgs gemm_args(const QuantizedRows& rows, const std::vector<unsigned char>& packed, Buffer& c,
                     bool with_bias) const {
    GemmArgs args{};
    args.packed = packed.data();
    args.parts = layout.parts;
    args.n = layout.n;
    args.k = layout.k;
    args.codes = &layout;
    args.integers = rows.rows;
    args.epilogue.bias = with_bias ? bias.data() : nullptr;
    args.epilogue.c = c.data();
    args.epilogue.c_stride = c.stride();
    args.epilogue.float_output = c.type() != type;
    return args;
  }

  // The rows as the schemes define them, in fp32 where they say so.
  IntegerRow integers(int64_t r) const {
    IntegerRow row;
    row.codes.resize(static_cast<size_t>(layout.k));
    row.scales.resize(static_cast<size_t>(layout.k));
    std::vector<float> values(static_cast<size_t>(layout.k));
    for (int64_t k = 0; k < layout.k; ++k)
      values[static_cast<size_t>(k)] = channel(k) < 0 ? 0.0f : x.get(r, channel(k));
    const int64_t piece = layout.segment_steps() * QuantLayout::kStep;
    for (int64_t begin = 0; begin < layout.k; begin += layout.group) {
      const int64_t end = std::min(begin + layout.group, layout.k);
      for (int64_t first = begin; first < end; first += piece) {
        const int64_t last = std::min(first + piece, end);
        const bool part = layout.scale_per_segment();
        float low = 0.0f, high = 0.0f;
        for (int64_t k = part ? first : 0; k < (part ? last : layout.k); ++k) {
          low = std::min(low, values[static_cast<size_t>(k)]);
          high = std::max(high, values[static_cast<size_t>(k)]);
        }
        quantize_piece(values, first, last, low, high, row);
      }
    }
    return row;
  }

 private:
  void quantize_piece(const std::vector<float>& values, int64_t first, int64_t last, float low,
                      float high, IntegerRow& row) const {
    const float magnitude = std::max(-low, high);
    float scale = static_scale, zero = 0.0f, least = -128.0f, most = 127.0f, factor = 0.0f;
    switch (layout.activations) {
      case Activations::kInt16:
      case Activations::kInt8:
        most = layout.activations == Activations::kInt16 ? 32767.0f : 127.0f;
        least = -most;
        scale = magnitude / most;
        factor = magnitude > 0.0f ? most / magnitude : 0.0f;
        break;
      case Activations::kInt8Token:
        scale = magnitude / 127.0f;
        break;
      case Activations::kInt8TokenAzp:
        scale = (high - low) / 255.0f;
        zero = magnitude > 0.0f ? std::nearbyint(-128.0f - low / scale) : 0.0f;
        break;
      case Activations::kInt8Static:
        break;
      case Activations::kInt8StaticAzp:
        zero = static_cast<float>(static_zero);
        break;
      case Activations::kFloat:
        return;  // no integers
    }
    for (int64_t k = first; k < last; ++k) {
      const float value = values[static_cast<size_t>(k)];
      const float y = factor != 0.0f ? value * factor : scale > 0.0f ? value / scale : 0.0f;
      const float code = std::nearbyint(std::min(std::max(y, least - zero), most - zero));
      row.codes[static_cast<size_t>(k)] = code;
      row.scales[static_cast<size_t>(k)] = scale;
    }
  }
};

inline bool may_have_levels(int bits, int64_t k, int64_t group) {
  return bits == 4 && group <= 128 && (group == k || group % QuantLayout::kLevelChannels == 0);
}

inline std::string label_of(const QuantProblem& problem) {
  const QuantLayout& layout = problem.layout;
  return format(
      "%s, %d bits, zero %s, %s scales, %s activations, m %lld n %lld k %lld group %lld%s",
      name_of(problem.type), layout.bits, name_of(layout.zero), name_of(layout.scale_type),
      name_of(layout.activations), static_cast<long long>(problem.m),
      static_cast<long long>(layout.n), static_cast<long long>(layout.k),
      static_cast<long long>(layout.group), problem.channels.empty() ? "" : " act-order");
}

// All rows and panels, in items of `tiles` tiles by `panel_step` panels.
inline void run(const KernelTable& table, DType type, const GemmArgs& args, int64_t tiles,
                int64_t panel_step) {
  const int64_t m = args.integers.m;
  const int64_t row_step = tiles * args.integers.tile_rows;
  Buffer scratch(DType::kFloat32, 1, table.gemm_scratch_floats(args.codes));
  const int64_t panels = table.panel_count(args.n, args.parts);
  for (int64_t r = 0; r < m; r += row_step)
    for (int64_t p = 0; p < panels; p += panel_step)
      table.gemm(type, args, {r, std::min(r + row_step, m)}, {p, std::min(p + panel_step, panels)},
                 static_cast<float*>(scratch.data()));
  scratch.check_guards("scratch of codes");
}

}  // namespace cpu_backend::test
