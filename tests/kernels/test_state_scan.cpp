// The state-space recurrence: several sequences with and without states, all types, odd sizes.
#include "harness.h"

namespace cpu_backend::test {
namespace {

struct Case {
  DType type, state_type;
  int64_t heads, channels, groups, states;
  bool shared, gate, skip, channels_far;  // channels_far: x and z with channels apart
};

constexpr int32_t kStarts[] = {0, 20, 22, 22, 23};  // one longer than a tile
constexpr int32_t kSlots[] = {4, 0, 1, 2};          // slot 0 is none
constexpr uint8_t kContinued[] = {1, 1, 1, 0};
constexpr int64_t kTokens = 25, kStates = 5, kSequences = 4;  // two tokens of no sequence

// A tensor [tokens, heads, channels] in a buffer, channels or tokens next to each other.
struct Cube {
  Cube(DType type, const Case& c, bool far)
      : buffer(type, far ? c.heads * c.channels : kTokens, far ? kTokens : c.heads * c.channels,
               (far ? kTokens : c.heads * c.channels) + 3),
        channels(c.channels),
        far(far) {}
  float get(int64_t t, int64_t h, int64_t p) const {
    return far ? buffer.get(h * channels + p, t) : buffer.get(t, h * channels + p);
  }
  Numbers view() const {
    const int64_t stride = buffer.stride();
    if (far) return {buffer.data(), buffer.type(), 1, channels * stride, stride};
    return {buffer.data(), buffer.type(), stride, channels, 1};
  }

  Buffer buffer;
  int64_t channels;
  bool far;
};

struct Step {
  Cube x, z, dt, out;
  Buffer a, b, c, d, bias, state;
};

// The channel's results for tokens [begin, end), its state left in `state`.
template <class Real>
std::vector<Real> scan(const Case& c, const Step& in, int64_t h, int64_t p, int64_t begin,
                       int64_t end, std::vector<Real>& state) {
  std::vector<Real> results;
  const int64_t group = h / (c.heads / c.groups);
  for (int64_t t = begin; t < end; ++t) {
    Real step = static_cast<Real>(in.dt.get(t, h, c.shared ? 0 : p)) +
                static_cast<Real>(in.bias.get(h, c.shared ? 0 : p));
    step = std::max<Real>(step, 0) + std::log1p(std::exp(-std::abs(step)));
    const Real x = static_cast<Real>(in.x.get(t, h, p));
    Real y = 0;
    for (int64_t n = 0; n < c.states; ++n) {
      const Real a = static_cast<Real>(c.shared ? in.a.get(h, 0) : in.a.get(h * c.channels + p, n));
      Real& s = state[static_cast<size_t>(n)];
      s = std::exp(step * a) * s + step * x * static_cast<Real>(in.b.get(t, group * c.states + n));
      y += s * static_cast<Real>(in.c.get(t, group * c.states + n));
    }
    if (c.skip) y += static_cast<Real>(in.d.get(h, p)) * x;
    const Real z = static_cast<Real>(in.z.get(t, h, p));
    results.push_back(c.gate ? y * z / (1 + std::exp(-z)) : y);
  }
  return results;
}

void check_case(const KernelTable& table, const Case& c, Random& random) {
  const std::string label =
      format("%s states %s heads %lld channels %lld groups %lld states %lld shared %d gate %d",
             name_of(c.type), name_of(c.state_type), static_cast<long long>(c.heads),
             static_cast<long long>(c.channels), static_cast<long long>(c.groups),
             static_cast<long long>(c.states), c.shared, c.gate);
  const int64_t rows = c.heads * c.channels;
  Step in{Cube(c.type, c, c.channels_far),
          Cube(c.type, c, c.channels_far),
          Cube(DType::kFloat32, c, false),
          Cube(c.type, c, c.channels_far),
          Buffer(DType::kFloat32, c.shared ? c.heads : rows, c.shared ? 1 : c.states),
          Buffer(c.type, kTokens, c.groups * c.states, c.groups * c.states + 5),
          Buffer(c.type, kTokens, c.groups * c.states, c.groups * c.states + 7),
          Buffer(c.type, c.heads, c.channels),
          Buffer(DType::kFloat32, c.heads, c.channels),
          Buffer(c.state_type, kStates * rows, c.states, c.states + 1)};
  for (Buffer* buffer :
       {&in.x.buffer, &in.z.buffer, &in.dt.buffer, &in.b, &in.c, &in.d, &in.bias, &in.state})
    buffer->fill(random, -1.5, 1.5);
  in.a.fill(random, -3.0, -0.1);
  const Buffer before = in.state;

  StateScanArgs args{};
  args.x = in.x.view();
  if (c.gate) args.z = in.z.view();
  args.dt = in.dt.view();
  args.dt_bias = {in.bias.data(), DType::kFloat32, 0, c.channels, 1};
  if (c.shared) args.dt.channel_stride = args.dt_bias.channel_stride = 0;
  if (c.skip) args.d = {in.d.data(), c.type, 0, c.channels, 1};
  args.a = static_cast<const float*>(in.a.data());
  args.a_head_stride = c.shared ? 1 : c.channels * c.states;
  args.a_channel_stride = c.shared ? 0 : c.states;
  args.a_state_stride = c.shared ? 0 : 1;
  args.b = in.b.data();
  args.b_token_stride = in.b.stride();
  args.c = in.c.data();
  args.c_token_stride = in.c.stride();
  args.b_group_stride = args.c_group_stride = c.states;
  args.b_state_stride = args.c_state_stride = 1;
  const Numbers out = in.out.view();
  args.out = in.out.buffer.data();
  args.out_token_stride = out.token_stride;
  args.out_head_stride = out.head_stride;
  args.out_channel_stride = out.channel_stride;
  args.state = in.state.data();
  args.state_channel_stride = in.state.stride();
  args.state_head_stride = c.channels * in.state.stride();
  args.state_slot_stride = rows * in.state.stride();
  args.tokens = kTokens;
  args.heads = c.heads;
  args.channels = c.channels;
  args.groups = c.groups;
  args.states = c.states;
  args.softplus = true;
  args.shared_steps = c.shared;
  args.sequences = {kSequences, kStarts, 0, kSlots, 1, 0, kContinued, false};
  std::vector<float> scratch(static_cast<size_t>(table.state_scan_scratch_floats(c.states)));
  for (int64_t s = kSequences; s >= 0; --s)  // the order does not matter
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t p = 0; p < c.channels; p += table.scan_channels)
        table.state_scan(c.type, c.state_type, args,
                         {s, h, {p, std::min(p + table.scan_channels, c.channels)}},
                         scratch.data());

  Compare results(c.type, label), states(c.state_type, label + ", the state");
  const auto unchanged = [&](int64_t slot, int64_t row) {
    for (int64_t n = 0; n < c.states; ++n)
      expect(in.state.bits(slot * rows + row, n) == before.bits(slot * rows + row, n),
             "%s: slot %lld was written", label.c_str(), static_cast<long long>(slot));
  };
  for (int64_t h = 0; h < c.heads; ++h)
    for (int64_t p = 0; p < c.channels; ++p) {
      const int64_t row = h * c.channels + p;
      for (int64_t s = 0; s < kSequences; ++s) {
        const int64_t begin = kStarts[s], end = kStarts[s + 1];
        if (kSlots[s] == 0 || begin == end) {
          unchanged(kSlots[s], row);
          for (int64_t t = begin; t < end; ++t)
            expect(in.out.get(t, h, p) == 0.0f, "%s: no zero for no sequence", label.c_str());
          continue;
        }
        std::vector<double> wide(static_cast<size_t>(c.states));
        for (int64_t n = 0; n < c.states && kContinued[s]; ++n)
          wide[static_cast<size_t>(n)] = static_cast<double>(before.get(kSlots[s] * rows + row, n));
        std::vector<float> plain(wide.begin(), wide.end());
        const std::vector<double> exact = scan(c, in, h, p, begin, end, wide);
        const std::vector<float> simple = scan(c, in, h, p, begin, end, plain);
        for (size_t t = 0; t < exact.size(); ++t)
          results.add(in.out.get(begin + static_cast<int64_t>(t), h, p), exact[t],
                      static_cast<double>(simple[t]));
        for (size_t n = 0; n < wide.size(); ++n)
          states.add(in.state.get(kSlots[s] * rows + row, static_cast<int64_t>(n)), wide[n],
                     static_cast<double>(plain[n]));
      }
      unchanged(3, row);
      for (int64_t t = kStarts[kSequences]; t < kTokens; ++t)
        expect(in.out.get(t, h, p) == 0.0f, "%s: no zero after the last", label.c_str());
    }
  results.check();
  states.check();
  in.state.check_guards(label);
  in.out.buffer.check_guards(label);
}

void test_state_scan_matches_reference() {
  for_each_target([](const KernelTable& table) {
    Random random(41);
    for (DType type : kTypes)
      for (int flags = 0; flags < 8; ++flags)
        for (int64_t states : {1, 5, 8, 16, 33, 85})
          check_case(table,
                     {type, DType::kFloat32, 2, flags % 2 ? 70 : 9, flags % 2 ? 1 : 2, states,
                      (flags & 1) != 0, (flags & 2) != 0, (flags & 4) != 0, flags % 3 == 0},
                     random);
  });
}
const Registration a("state_scan/test_state_scan_matches_reference",
                     test_state_scan_matches_reference);

// One token at a time and all at once, with states of every type.
void test_state_scan_does_not_depend_on_where_steps_begin() {
  for_each_target([](const KernelTable& table) {
    for (DType type : kTypes)
      for (DType state_type : kTypes) {
        Random random(42);
        constexpr int64_t kChannels = 11, kN = 85, kLong = 40;
        Buffer x(type, kLong, kChannels), b(type, kLong, kN), c(type, kLong, kN),
            dt(type, kLong, 1), a(DType::kFloat32, 1, 1), whole(type, kLong, kChannels),
            parts(type, kLong, kChannels), state(state_type, 2 * kChannels, kN);
        for (Buffer* buffer : {&x, &b, &c, &dt, &state}) buffer->fill(random, -1.0, 1.0);
        a.set(0, 0, -0.7);
        StateScanArgs args{};
        args.x = {x.data(), type, kChannels, 0, 1};
        args.dt = {dt.data(), type, 1, 0, 0};
        args.a = static_cast<const float*>(a.data());
        args.b = b.data();
        args.c = c.data();
        args.b_token_stride = args.c_token_stride = kN;
        args.b_state_stride = args.c_state_stride = 1;
        args.out = whole.data();
        args.out_token_stride = kChannels;
        args.out_channel_stride = 1;
        args.state = state.data();
        args.state_slot_stride = kChannels * kN;
        args.state_channel_stride = kN;
        args.tokens = kLong;
        args.heads = args.groups = 1;
        args.channels = kChannels;
        args.states = kN;
        args.softplus = args.shared_steps = true;
        std::vector<float> scratch(static_cast<size_t>(table.state_scan_scratch_floats(kN)));
        const auto run = [&](int32_t begin, int32_t end, int32_t slot, bool continued) {
          const int32_t starts[] = {begin, end};
          const auto goes_on = static_cast<uint8_t>(continued);
          args.sequences = {1, starts, 0, &slot, 1, -1, &goes_on, false};
          table.state_scan(type, state_type, args, {0, 0, {0, kChannels}}, scratch.data());
        };
        run(0, kLong, 0, false);
        args.out = parts.data();
        for (int32_t t : {0, 1, 2}) run(t, t + 1, 1, t > 0);
        run(3, 20, 1, true);
        run(20, kLong, 1, true);
        expect(whole == parts, "%s, states %s: results depend on steps", name_of(type),
               name_of(state_type));
        for (int64_t p = 0; p < kChannels; ++p)
          for (int64_t n = 0; n < kN; ++n)
            expect(state.bits(p, n) == state.bits(kChannels + p, n), "states depend on steps");
      }
  });
}
const Registration b("state_scan/test_state_scan_does_not_depend_on_where_steps_begin",
                     test_state_scan_does_not_depend_on_where_steps_begin);

}  // namespace
}  // namespace cpu_backend::test
