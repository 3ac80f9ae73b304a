// How the ranks of a group find each other, and how each notices that another is gone.
//
// Every rank listens on a socket in Linux's abstract namespace and is linked to every other rank;
// rank 0 makes anonymous memory (memfd) and passes it over the links.  Neither has a name in a file
// system, so nothing can be left behind, whatever kills the processes at whatever moment, and the
// size of /dev/shm does not matter.  The links stay open: the kernel closes them when a process
// ends, and that is how its peers know.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cpu_backend::collectives {

// A file descriptor and its owner.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_;
};

class Rendezvous {
 public:
  // How long the others may take to come.
  static constexpr int kPatienceSeconds = 60;

  Rendezvous(std::string group, int size, int rank);

  // Others can find this rank from here on.  False with one sentence in `error`.
  bool listen(std::string* error);

  // Links to every other rank; all must bring the same `agreement`.  Gives the descriptor of
  // `bytes` of zeroed shared memory.  False with one sentence in `error`.
  bool meet(uint64_t agreement, int64_t bytes, Descriptor* memory, std::string* error);

  // A rank that has closed its links or ended; -1 while all are there.
  int find_gone() const;

 private:
  bool call(int peer, uint64_t agreement, std::string* error);
  bool answer(uint64_t agreement, std::string* error);
  bool create_memory(int64_t bytes, Descriptor* memory, std::string* error);
  bool fail(const std::string& what, std::string* error) const;

  std::string group_;
  int size_, rank_;
  Descriptor listener_;
  std::vector<Descriptor> links_;  // by rank; one's own stays empty
};

}  // namespace cpu_backend::collectives
