// What ranks do together, with threads and with processes as ranks.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "collectives/collectives.h"
#include "harness.h"

namespace cpu_backend::test {
namespace {

using namespace collectives;
using Clock = std::chrono::steady_clock;
using Bytes = std::vector<char>;

const KernelTable* best() {
  std::string error;
  return select_table(getenv("CPU_BACKEND_ISA"), &error);
}

// No two groups of a run have the same name, nor do two runs at the same time.
std::string fresh_name() {
  static int count = 0;
  return "test-" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

std::unique_ptr<Group> open_group(const Options& options) {
  std::string error;
  auto group = Group::create(options, &error);
  if (!expect(group && group->join(&error), "%s", error.c_str())) return nullptr;
  return group;
}

// run(group) on `size` ranks at once, each a thread.
void with_ranks(int size, int lanes, const std::function<void(Group&)>& run) {
  const std::string name = fresh_name();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] {
      if (auto group = open_group({name, size, rank, lanes, best()})) {
        run(*group);
        // Nobody leaves while another one is still at work: that would be a lost rank to it.
        Bytes all(static_cast<size_t>(size));
        (void)all_gather(*group, 0, all.data() + rank, 1, all.data(), 1);
      }
    });
  for (std::thread& rank : ranks) rank.join();
}

// What rank `rank` brings to round `round`: any rank can say what another one has.
Buffer contribution(DType type, int64_t count, int rank, int round) {
  Buffer data(type, 1, count);
  Random random(static_cast<uint64_t>(1000 * round + rank));
  data.fill(random, -2.0, 2.0);
  return data;
}

Buffer total(DType type, int64_t count, int size, int round) {
  Buffer sum = contribution(type, count, 0, round);
  std::vector<Buffer> all;
  for (int rank = 0; rank < size; ++rank) all.push_back(contribution(type, count, rank, round));
  for (int64_t i = 0; i < count; ++i) {
    float x = all[0].get(0, i);
    for (int rank = 1; rank < size; ++rank) x += all[static_cast<size_t>(rank)].get(0, i);
    sum.set(0, i, x);
  }
  return sum;
}

// Around a vector, around one and several chunks, around the change of algorithm.
std::vector<int64_t> counts(DType type) {
  const int64_t chunk = kSlotBytes / bytes_of(type);
  if (kEmulated) return {1, 3, 2049, chunk + 1};
  return {1,    3,         17,    1000,      2047,          2049,          4095,
          4097, chunk - 1, chunk, chunk + 1, 3 * chunk + 5, 9 * chunk + 77};
}

void test_all_reduce_gives_every_rank_the_exact_sum() {
  for (int size : {1, 2, 3, 5})
    for (DType type : kTypes)
      with_ranks(size, 1, [&](Group& group) {
        int round = 0;
        for (int64_t count : counts(type)) {
          Buffer data = contribution(type, count, group.rank(), ++round);
          const bool ok = all_reduce(group, 0, type, static_cast<char*>(data.data()), count);
          expect(ok && data == total(type, count, size, round), "%s, %d ranks, %lld elements",
                 name_of(type), size, static_cast<long long>(count));
        }
      });
}

void test_lanes_are_independent() {
  constexpr int kLanes = 3;
  with_ranks(2, kLanes, [&](Group& group) {
    std::vector<std::thread> lanes;
    for (int lane = 0; lane < kLanes; ++lane)
      lanes.emplace_back([&, lane] {
        // Every lane at its own pace: other lengths, another number of rounds.
        for (int round = 0; round < static_cast<int>(reps(200)) * (lane + 1); ++round) {
          const int64_t count = 1 + (round * 7919 + lane * 1000) % 40000;
          Buffer data = contribution(DType::kBFloat16, count, group.rank(), round);
          const bool ok =
              all_reduce(group, lane, DType::kBFloat16, static_cast<char*>(data.data()), count);
          if (!ok) expect(false, "lane %d: %s", lane, group.failure().c_str());
          if (round % 20 == 0)
            expect(data == total(DType::kBFloat16, count, 2, round), "lane %d, round %d", lane,
                   round);
        }
      });
    for (std::thread& lane : lanes) lane.join();
  });
}

Bytes pattern(int rank, int64_t bytes) {
  Random random(static_cast<uint64_t>(rank + 77));
  Bytes data(static_cast<size_t>(bytes));
  for (char& c : data) c = static_cast<char>(random.bits());
  return data;
}

void test_all_gather_and_gather_copy_every_byte() {
  const int64_t guard = 11;
  for (int size : {1, 2, 3, 5})
    with_ranks(size, 1, [&](Group& group) {
      for (int64_t bytes :
           {int64_t{1}, int64_t{63}, kSlotBytes, kSlotBytes + 1, 6 * kSlotBytes + 9})
        for (int to = 0; to < size; ++to) {
          const Bytes mine = pattern(group.rank(), bytes);
          Bytes out(static_cast<size_t>(size * (bytes + guard)), 'x');
          bool ok = all_gather(group, 0, mine.data(), bytes, out.data(), bytes + guard);
          std::vector<Bytes> parts(static_cast<size_t>(size), Bytes(mine.size()));
          std::vector<char*> starts;
          for (Bytes& part : parts) starts.push_back(part.data());
          ok = ok && gather(group, 0, mine.data(), bytes, starts.data(), to);
          for (int rank = 0; rank < size; ++rank) {
            const Bytes theirs = pattern(rank, bytes);
            const char* at = out.data() + rank * (bytes + guard);
            ok = ok && memcmp(at, theirs.data(), theirs.size()) == 0 && at[bytes] == 'x';
            if (group.rank() == to) ok = ok && parts[static_cast<size_t>(rank)] == theirs;
          }
          expect(ok, "%d ranks, %lld bytes to %d", size, static_cast<long long>(bytes), to);
        }
    });
}

void test_messages_arrive_in_order_and_need_no_waiting_receiver() {
  constexpr int kSize = 3;
  constexpr int kMessages = 40;
  with_ranks(kSize, 1, [&](Group& group) {
    const int next = (group.rank() + 1) % kSize;
    const int previous = (group.rank() + kSize - 1) % kSize;
    // All ranks send first, so a send that waited for its receiver would never return.
    for (int i = 0; i < kMessages; ++i) {
      const Bytes data = pattern(100 * group.rank() + i, 1 + 1000 * i);
      expect(send(group, next, data.data(), static_cast<int64_t>(data.size())), "send %d", i);
    }
    for (int i = 0; i < kMessages; ++i) {
      Bytes data(static_cast<size_t>(1 + 1000 * i));
      const bool ok = receive(group, previous, data.data(), static_cast<int64_t>(data.size()));
      expect(ok && data == pattern(100 * previous + i, 1 + 1000 * i), "message %d", i);
    }
  });
}

void test_message_larger_than_the_mailbox_passes_through() {
  const int64_t bytes = kMailSlots * kMailSlotBytes + 12345;
  with_ranks(2, 1, [&](Group& group) {
    if (group.rank() == 0) {
      const Bytes data = pattern(1, bytes);
      expect(send(group, 1, data.data(), bytes), "sent");
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      Bytes data(static_cast<size_t>(bytes));
      expect(receive(group, 0, data.data(), bytes) && data == pattern(1, bytes), "received");
    }
  });
}

void test_ranks_may_come_late() {
  for (int late : {0, 1}) {
    const auto pause = std::chrono::milliseconds(700);  // spins, yields and naps several times
    with_ranks(2, 1, [&](Group& group) {
      for (int round = 0; round < 3; ++round) {
        if (group.rank() == late) std::this_thread::sleep_for(pause);
        float x = static_cast<float>(group.rank() + round);
        const bool ok = all_reduce(group, 0, DType::kFloat32, reinterpret_cast<char*>(&x), 1);
        expect(ok && x == static_cast<float>(1 + 2 * round), "round %d: %g", round, x);
      }
    });
  }
}

// ---- ranks as processes --------------------------------------------------------------------

// Forks `size` processes that run `rank(name, rank)`; their exit codes.
std::vector<int> run_processes(int size, const std::function<int(const std::string&, int)>& rank) {
  const std::string name = fresh_name();
  fflush(stdout);
  std::vector<pid_t> children;
  for (int r = 0; r < size; ++r) {
    const pid_t child = fork();
    if (child == 0) _exit(rank(name, r));
    children.push_back(child);
  }
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
  }
  return codes;
}

void test_processes_sum_the_same_bits() {
  const auto codes = run_processes(3, [](const std::string& name, int rank) {
    const auto group = open_group({name, 3, rank, 1, best()});
    if (!group) return 1;
    for (int round = 0; round < static_cast<int>(reps(100)); ++round) {
      const int64_t count = 1 + (round * 7919) % 50000;
      Buffer data = contribution(DType::kFloat16, count, rank, round);
      if (!all_reduce(*group, 0, DType::kFloat16, static_cast<char*>(data.data()), count)) return 2;
      if (round % 10 == 0 && !(data == total(DType::kFloat16, count, 3, round))) return 3;
    }
    return 0;
  });
  expect(codes == std::vector<int>({0, 0, 0}), "exit codes %d %d %d", codes[0], codes[1], codes[2]);
}

void test_killed_process_ends_the_waits_of_the_others() {
  // One dies between operations while the others wait in a sum, a message and a full mailbox.
  enum Where { kSum, kReceive, kSend };
  for (const Where where : {kSum, kReceive, kSend}) {
    const auto codes = run_processes(3, [&](const std::string& name, int rank) {
      const auto group = open_group({name, 3, rank, 1, best()});
      if (!group) return 1;
      float x = 1.0f;
      auto* data = reinterpret_cast<char*>(&x);
      if (!all_reduce(*group, 0, DType::kFloat32, data, 1)) return 2;
      if (rank == 1) raise(SIGKILL);
      const auto start = Clock::now();
      Bytes large(static_cast<size_t>(2 * kMailSlots * kMailSlotBytes));
      const auto bytes = static_cast<int64_t>(large.size());
      const bool ok = where == kSum       ? all_reduce(*group, 0, DType::kFloat32, data, 1)
                      : where == kReceive ? receive(*group, 1, data, 4)
                                          : send(*group, 1, large.data(), bytes);
      if (ok) return 3;
      if (group->failure().find("has lost rank 1") == std::string::npos) return 4;
      return Clock::now() - start < std::chrono::seconds(2) ? 0 : 5;
    });
    expect(codes == std::vector<int>({0, -SIGKILL, 0}), "case %d: exit codes %d %d %d", where,
           codes[0], codes[1], codes[2]);
  }
}

void test_abandoned_group_ends_all_waits() {
  with_ranks(3, 1, [&](Group& group) {
    if (group.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      group.abandon();
      std::this_thread::sleep_for(std::chrono::seconds(1));  // alive, and of no more use
    } else {
      float x = 1.0f;
      const bool ok = all_reduce(group, 0, DType::kFloat32, reinterpret_cast<char*>(&x), 1);
      expect(!ok && group.failure().find("rank 2 met an error") != std::string::npos, "%s",
             group.failure().c_str());
    }
  });
}

void test_different_lengths_are_refused() {
  with_ranks(2, 1, [&](Group& group) {
    std::vector<float> x(100);
    const int64_t count = group.rank() == 0 ? 100 : 99;
    const bool ok = all_reduce(group, 0, DType::kFloat32, reinterpret_cast<char*>(x.data()), count);
    expect(!ok, "lengths 100 and 99 gave a sum");
    // A second call must fail as well, and not wait.
    expect(!all_reduce(group, 0, DType::kFloat32, reinterpret_cast<char*>(x.data()), 100),
           "the group went on");
  });
}

void test_impossible_groups_are_refused() {
  std::string error;
  for (const Options& options : {Options{"g", 2, 2, 1, best()}, Options{"g", 2, -1, 1, best()},
                                 Options{"g", 0, 0, 1, best()}, Options{"g", 2, 0, 0, best()}})
    expect(!Group::create(options, &error) && error.find("not possible") != std::string::npos, "%s",
           error.c_str());
  const std::string name = fresh_name();
  const auto first = Group::create({name, 2, 0, 1, best()}, &error);
  expect(first != nullptr, "%s", error.c_str());
  expect(!Group::create({name, 2, 0, 1, best()}, &error) &&
             error.find("exists already") != std::string::npos,
         "%s", error.c_str());

  const std::string other = fresh_name();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      std::string said;
      const auto group = Group::create({other, 2, rank, 1 + rank, best()}, &said);
      expect(group && !group->join(&said) && !said.empty(), "ranks with 1 and 2 lanes met");
    });
  for (std::thread& rank : ranks) rank.join();
}

const Registration kTests[] = {
    {"collectives/test_all_reduce_gives_every_rank_the_exact_sum",
     test_all_reduce_gives_every_rank_the_exact_sum},
    {"collectives/test_lanes_are_independent", test_lanes_are_independent},
    {"collectives/test_all_gather_and_gather_copy_every_byte",
     test_all_gather_and_gather_copy_every_byte},
    {"collectives/test_messages_arrive_in_order_and_need_no_waiting_receiver",
     test_messages_arrive_in_order_and_need_no_waiting_receiver},
    {"collectives/test_message_larger_than_the_mailbox_passes_through",
     test_message_larger_than_the_mailbox_passes_through},
    {"collectives/test_ranks_may_come_late", test_ranks_may_come_late},
    {"collectives/test_processes_sum_the_same_bits", test_processes_sum_the_same_bits},
    {"collectives/test_killed_process_ends_the_waits_of_the_others",
     test_killed_process_ends_the_waits_of_the_others},
    {"collectives/test_abandoned_group_ends_all_waits", test_abandoned_group_ends_all_waits},
    {"collectives/test_different_lengths_are_refused", test_different_lengths_are_refused},
    {"collectives/test_impossible_groups_are_refused", test_impossible_groups_are_refused},
};

}  // namespace
}  // namespace cpu_backend::test
