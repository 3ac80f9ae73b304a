// The host's shared-memory collectives: handles, threads and messages over csrc/collectives.
#include "collectives/collectives.h"

#include <mutex>

#include "torch_ops/ops.h"
#include "torch_ops/parallel.h"
#include "torch_ops/views.h"

namespace cpu_backend {
namespace {

using collectives::Group;
using Tensors = std::vector<at::Tensor>;

// Bytes that are worth a thread: with less, waking it takes longer than copying.
constexpr int64_t kLaneBytes = 32 << 10;

// The host names its groups once and keeps the handles for as long as the process lives.
std::mutex groups_mutex;
std::vector<std::unique_ptr<Group>> groups;

Group& group_of(int64_t handle) {
  const std::lock_guard<std::mutex> lock(groups_mutex);
  TORCH_CHECK_VALUE(handle >= 0 && handle < static_cast<int64_t>(groups.size()),
                    "there is no group with handle ", handle, "; init_shm_manager gives handles.");
  return *groups[static_cast<size_t>(handle)];
}

Group& joined_group(int64_t handle) {
  Group& group = group_of(handle);
  TORCH_CHECK_VALUE(group.joined(), "group ", handle,
                    " has not been joined: join_shm_manager first.");
  return group;
}

void check(bool ok, const Group& group) { TORCH_CHECK(ok, group.failure()); }

int rank_of(const Group& group, int64_t rank, const char* name) {
  TORCH_CHECK_VALUE(rank >= 0 && rank < group.size() && rank != group.rank(), name, " is ", rank,
                    "; rank ", group.rank(), " of ", group.size(), " can reach the others only.");
  return static_cast<int>(rank);
}

// run(lane, slice) over [0, count) elements, each thread in a lane of its own.  Lanes wait only for
// the same lane of other ranks, so it does not matter how many of them really run at once.  A step
// recording runs it again later: capture by value, and flat.
template <class Run>
void run_lanes(Group& group, int64_t count, int64_t element_bytes, const Run& run) {
  const int64_t useful = ceil_div(count * element_bytes, kLaneBytes);
  const int64_t lanes = std::min<int64_t>(group.lanes(), useful);
  parallel_slices(lanes, 1, [&group, count, lanes, run](Slice mine) {
    for (int64_t lane = mine.begin; lane < mine.end; ++lane)
      TORCH_CHECK(run(static_cast<int>(lane), split(count, lanes, lane)), group.failure());
  });
}

char* bytes_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.data_ptr()); }

// What a rank sends before the tensors themselves.
struct TensorHeader {
  int64_t dtype;
  int64_t numel;
};

}  // namespace

int64_t init_shm_manager(const std::string& name, int64_t group_size, int64_t rank,
                         int64_t thread_num) {
  std::string error;
  auto group = Group::create({name, static_cast<int>(group_size), static_cast<int>(rank),
                              static_cast<int>(thread_num), &kernels()},
                             &error);
  TORCH_CHECK(group, error);
  const std::lock_guard<std::mutex> lock(groups_mutex);
  groups.push_back(std::move(group));
  return static_cast<int64_t>(groups.size()) - 1;
}

std::string join_shm_manager(int64_t handle, const std::string& name) {
  std::string error;
  TORCH_CHECK(group_of(handle).join(&error), error);
  return name;
}

void shm_allreduce(int64_t handle, at::Tensor& data) {
  Group& group = joined_group(handle);
  const DType type = dtype_of(data, "data");
  const at::Tensor dense = data.contiguous();
  const int64_t size = dense.element_size();
  run_lanes(group, dense.numel(), size,
            [=, &group, bytes = bytes_of(dense)](int lane, Slice slice) {
              return collectives::all_reduce(group, lane, type, bytes + slice.begin * size,
                                             slice.end - slice.begin);
            });
  if (!dense.is_same(data)) data.copy_(dense);
}

void shm_all_gather(int64_t handle, const at::Tensor& data, at::Tensor& output) {
  Group& group = joined_group(handle);
  const at::Tensor dense = data.contiguous();
  TORCH_CHECK_TYPE(output.scalar_type() == data.scalar_type(), "output has dtype ",
                   output.scalar_type(), " but data has ", data.scalar_type(), ".");
  TORCH_CHECK_VALUE(output.is_contiguous() && output.numel() == data.numel() * group.size(),
                    "output must be contiguous with ", group.size(), " times the ", data.numel(),
                    " elements of data, its shape is ", output.sizes(), ".");
  const auto total = static_cast<int64_t>(dense.nbytes());
  run_lanes(group, total, 1,
            [=, &group, from = bytes_of(dense), to = bytes_of(output)](int lane, Slice slice) {
              return collectives::all_gather(group, lane, from + slice.begin,
                                             slice.end - slice.begin, to + slice.begin, total);
            });
}

void shm_gather(int64_t handle, const at::Tensor& data, const std::optional<Tensors>& outputs,
                int64_t dst) {
  Group& group = joined_group(handle);
  const bool receiving = dst == group.rank();
  const int to = receiving ? group.rank() : rank_of(group, dst, "dst");
  const at::Tensor dense = data.contiguous();
  std::vector<char*> starts(static_cast<size_t>(group.size()));
  if (receiving) {
    TORCH_CHECK_VALUE(outputs && static_cast<int>(outputs->size()) == group.size(),
                      "the receiving rank needs one output per rank.");
    for (int rank = 0; rank < group.size(); ++rank) {
      const at::Tensor& output = (*outputs)[static_cast<size_t>(rank)];
      check_same_dtype(output, "an output", data, "data");
      TORCH_CHECK_VALUE(output.is_contiguous() && output.numel() == data.numel(),
                        "every output must be contiguous with as many elements as data.");
      starts[static_cast<size_t>(rank)] = bytes_of(output);
    }
  }
  run_lanes(group, static_cast<int64_t>(dense.nbytes()), 1, [&](int lane, Slice slice) {
    std::vector<char*> at(starts);
    if (receiving)
      for (char*& start : at) start += slice.begin;
    return collectives::gather(group, lane, bytes_of(dense) + slice.begin, slice.end - slice.begin,
                               at.data(), to);
  });
}

void shm_send_tensor_list(int64_t handle, const Tensors& tensor_list, int64_t dst) {
  Group& group = joined_group(handle);
  const int to = rank_of(group, dst, "dst");
  std::vector<TensorHeader> headers;
  for (const at::Tensor& tensor : tensor_list)
    headers.push_back({static_cast<int64_t>(tensor.scalar_type()), tensor.numel()});
  const auto count = static_cast<int64_t>(headers.size());
  const auto send = [&](const void* data, size_t bytes) {
    check(collectives::send(group, to, static_cast<const char*>(data), static_cast<int64_t>(bytes)),
          group);
  };
  send(&count, sizeof count);
  send(headers.data(), headers.size() * sizeof(TensorHeader));
  for (const at::Tensor& tensor : tensor_list) {
    const at::Tensor dense = tensor.contiguous();
    send(dense.data_ptr(), dense.nbytes());
  }
}

Tensors shm_recv_tensor_list(int64_t handle, int64_t src) {
  Group& group = joined_group(handle);
  const int from = rank_of(group, src, "src");
  const auto receive = [&](void* data, size_t bytes) {
    check(collectives::receive(group, from, static_cast<char*>(data), static_cast<int64_t>(bytes)),
          group);
  };
  int64_t count = 0;
  receive(&count, sizeof count);
  std::vector<TensorHeader> headers(static_cast<size_t>(count));
  receive(headers.data(), headers.size() * sizeof(TensorHeader));
  Tensors result;
  for (const TensorHeader& header : headers) {
    result.push_back(at::empty({header.numel}, static_cast<at::ScalarType>(header.dtype)));
    receive(result.back().data_ptr(), result.back().nbytes());
  }
  return result;
}

void abandon_groups() {
  const std::lock_guard<std::mutex> lock(groups_mutex);
  for (const auto& group : groups) group->abandon();
}

}  // namespace cpu_backend
