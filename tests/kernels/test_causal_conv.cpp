// Causal convolution: several sequences with and without states, in slices of channels.
#include "harness.h"

namespace cpu_backend::test {
namespace {

struct Case {
  DType type;
  int64_t channels;
  int taps;
  bool bias, silu, channels_first;
};

constexpr int32_t kStarts[] = {0, 2, 3, 3, 9};
constexpr int32_t kSlots[] = {4, 0, 1, 2};  // slot 0 is none
constexpr uint8_t kContinued[] = {1, 1, 1, 0};
constexpr int64_t kTokens = 11, kStates = 5;  // two tokens of no sequence

template <class Real>
Real convolve(const Case& c, const std::vector<float>& inputs, const Buffer& weight,
              const Buffer& bias, int64_t channel) {
  Real sum = c.bias ? static_cast<Real>(bias.get(0, channel)) : 0;
  for (int j = 0; j < c.taps; ++j)
    sum += static_cast<Real>(weight.get(channel, j)) *
           static_cast<Real>(inputs[static_cast<size_t>(j)]);
  return c.silu ? sum / (1 + std::exp(-sum)) : sum;
}

void check_case(const KernelTable& table, const Case& c, Random& random) {
  const std::string label =
      format("%s channels %lld taps %d bias %d silu %d channels first %d", name_of(c.type),
             static_cast<long long>(c.channels), c.taps, c.bias, c.silu, c.channels_first);
  const int history = c.taps - 1;
  Buffer x(c.type, kTokens, c.channels, c.channels + 5),
      y(c.type, kTokens, c.channels, c.channels + 3);
  Buffer weight(c.type, c.channels, c.taps), bias(c.type, 1, c.channels);
  // A row per slot and channel, or per slot and time.
  const int64_t rows = c.channels_first ? c.channels : history;
  Buffer state(c.type, kStates * rows, c.channels_first ? history : c.channels);
  for (Buffer* buffer : {&x, &weight, &bias, &state}) buffer->fill(random, -2.0, 2.0);
  const Buffer before = state;
  const auto held = [&](const Buffer& from, int64_t slot, int64_t channel, int64_t time) {
    return c.channels_first ? from.get(slot * rows + channel, time)
                            : from.get(slot * rows + time, channel);
  };

  CausalConvArgs args{};
  args.x = x.data();
  args.x_stride = x.stride();
  args.y = y.data();
  args.y_stride = y.stride();
  args.tokens = kTokens;
  args.channels = c.channels;
  args.taps = c.taps;
  args.weight = weight.data();
  args.weight_channel_stride = c.taps;
  args.weight_tap_stride = 1;
  args.bias = c.bias ? bias.data() : nullptr;
  args.state = state.data();
  args.state_slot_stride = rows * state.stride();
  args.state_channel_stride = c.channels_first ? history : 1;
  args.state_time_stride = c.channels_first ? 1 : c.channels;
  args.silu = c.silu;
  args.sequences = {4, kStarts, 0, kSlots, 1, 0, kContinued, false};
  std::vector<float> scratch(static_cast<size_t>(table.causal_conv_scratch_floats(c.taps)));
  for (int64_t i = 0; i < c.channels; i += table.conv_channels)
    table.causal_conv(c.type, args, {i, std::min(i + table.conv_channels, c.channels)},
                      scratch.data());

  Compare compare(c.type, label);
  for (int64_t channel = 0; channel < c.channels; ++channel) {
    for (int s = 0; s < 4; ++s) {
      std::vector<float> inputs;
      inputs.reserve(static_cast<size_t>(c.taps));
      for (int j = 0; j < history; ++j)
        inputs.push_back(kContinued[s] ? held(before, kSlots[s], channel, j) : 0.0f);
      for (int32_t t = kStarts[s]; t < kStarts[s + 1]; ++t) {
        inputs.push_back(x.get(t, channel));
        if (kSlots[s] == 0) {
          expect(y.get(t, channel) == 0.0f, "%s: no zero for no sequence", label.c_str());
        } else {
          compare.add(y.get(t, channel), convolve<double>(c, inputs, weight, bias, channel),
                      static_cast<double>(convolve<float>(c, inputs, weight, bias, channel)));
        }
        inputs.erase(inputs.begin());
      }
      const bool unchanged = kSlots[s] == 0 || kStarts[s] == kStarts[s + 1];
      for (int j = 0; j < history; ++j)
        expect(
            held(state, kSlots[s], channel, j) ==
                (unchanged ? held(before, kSlots[s], channel, j) : inputs[static_cast<size_t>(j)]),
            "%s: state %d of sequence %d", label.c_str(), j, s);
    }
    for (int64_t t = kStarts[4]; t < kTokens; ++t)
      expect(y.get(t, channel) == 0.0f, "%s: no zero after the last sequence", label.c_str());
    for (int j = 0; j < history; ++j)
      expect(held(state, 3, channel, j) == held(before, 3, channel, j),
             "%s: the state of another sequence", label.c_str());
  }
  compare.check();
  for (const Buffer* buffer : {&x, &y, &state}) buffer->check_guards(label);
}

void test_causal_conv_matches_reference() {
  for_each_target([](const KernelTable& table) {
    Random random(31);
    for (DType type : kTypes)
      for (int64_t channels : odd_sizes())
        for (int taps : {2, 3, 4, 5})
          check_case(table, {type, channels, taps, taps != 3, taps % 2 == 0, channels % 2 == 0},
                     random);
  });
}
const Registration a("causal_conv/test_causal_conv_matches_reference",
                     test_causal_conv_matches_reference);

}  // namespace
}  // namespace cpu_backend::test
