#include "collectives/rendezvous.h"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

namespace cpu_backend::collectives {
namespace {

// What a rank says when it has called another one.
struct Hello {
  uint64_t agreement;
  int32_t rank;
};

struct Address {
  sockaddr_un socket;
  socklen_t length;
};

// The group's name may be longer than the 107 bytes of an address, so it goes in as a hash (FNV-1a)
// of 64 bits; a leading zero byte makes the name abstract.
Address address_of(const std::string& group, int rank) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : group) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  Address address{};
  address.socket.sun_family = AF_UNIX;
  const int written =
      snprintf(address.socket.sun_path + 1, sizeof address.socket.sun_path - 1,
               "cpu_backend.%016llx.%d", static_cast<unsigned long long>(hash), rank);
  address.length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(written));
  return address;
}

const sockaddr* plain(const Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.socket);
}

Descriptor open_socket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience{Rendezvous::kPatienceSeconds, 0};
  setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return socket;
}

// The abstract namespace has no permissions: anybody on the machine may call or squat a name.
bool is_same_user(int link) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(link, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

// One byte, without which nothing is sent, and beside it a descriptor as SCM_RIGHTS.
struct Message {
  char byte = 0;
  iovec text{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};

  Message() {
    header.msg_iov = &text;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
};

bool send_descriptor(int link, int fd) {
  Message message;
  cmsghdr* rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(rights), &fd, sizeof fd);
  return sendmsg(link, &message.header, MSG_NOSIGNAL) == 1;
}

Descriptor receive_descriptor(int link) {
  Message message;
  if (recvmsg(link, &message.header, MSG_CMSG_CLOEXEC) != 1) return Descriptor();
  const cmsghdr* rights = CMSG_FIRSTHDR(&message.header);
  if (!rights || rights->cmsg_type != SCM_RIGHTS) return Descriptor();
  int fd = -1;
  memcpy(&fd, CMSG_DATA(rights), sizeof fd);
  return Descriptor(fd);
}

std::string reason() { return std::strerror(errno); }

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Rendezvous::Rendezvous(std::string group, int size, int rank)
    : group_(std::move(group)), size_(size), rank_(rank), links_(static_cast<size_t>(size)) {}

bool Rendezvous::fail(const std::string& what, std::string* error) const {
  *error = "rank " + std::to_string(rank_) + " of group " + group_ + ": " + what + ".";
  return false;
}

bool Rendezvous::listen(std::string* error) {
  listener_ = open_socket();
  const Address address = address_of(group_, rank_);
  if (!listener_.valid() || bind(listener_.get(), plain(address), address.length) != 0)
    return fail(errno == EADDRINUSE ? "this rank exists already" : "no socket, " + reason(), error);
  if (::listen(listener_.get(), size_) != 0) return fail("cannot listen, " + reason(), error);
  return true;
}

bool Rendezvous::call(int peer, uint64_t agreement, std::string* error) {
  using Clock = std::chrono::steady_clock;
  const Address address = address_of(group_, peer);
  const auto deadline = Clock::now() + std::chrono::seconds(kPatienceSeconds);
  Descriptor link;
  while (true) {
    link = open_socket();
    if (connect(link.get(), plain(address), address.length) == 0) break;
    const bool absent = errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR;
    if (!absent || Clock::now() > deadline)
      return fail("rank " + std::to_string(peer) + " cannot be reached, " + reason(), error);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  const Hello hello{agreement, rank_};
  if (!is_same_user(link.get())) return fail("a stranger has taken the group's name", error);
  if (send(link.get(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello)
    return fail("rank " + std::to_string(peer) + " went away, " + reason(), error);
  links_[static_cast<size_t>(peer)] = std::move(link);
  return true;
}

bool Rendezvous::answer(uint64_t agreement, std::string* error) {
  pollfd waiting{listener_.get(), POLLIN, 0};
  if (poll(&waiting, 1, kPatienceSeconds * 1000) != 1)
    return fail("not all ranks came within " + std::to_string(kPatienceSeconds) + " s", error);
  Descriptor link(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const timeval patience{kPatienceSeconds, 0};
  setsockopt(link.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  Hello hello{};
  if (!link.valid() || !is_same_user(link.get()) ||
      recv(link.get(), &hello, sizeof hello, MSG_WAITALL) != sizeof hello)
    return true;  // a stranger, or one that left again: the caller counts only ranks
  const bool expected = hello.rank > rank_ && hello.rank < size_;
  if (!expected || hello.agreement != agreement)
    return fail("rank " + std::to_string(hello.rank) + " has another number of ranks or threads",
                error);
  links_[static_cast<size_t>(hello.rank)] = std::move(link);
  return true;
}

bool Rendezvous::create_memory(int64_t bytes, Descriptor* memory, std::string* error) {
  *memory = Descriptor(memfd_create("cpu_backend collectives", MFD_CLOEXEC));
  if (!memory->valid() || ftruncate(memory->get(), bytes) != 0)
    return fail("no shared memory, " + reason(), error);
  for (const Descriptor& link : links_)
    if (link.valid() && !send_descriptor(link.get(), memory->get()))
      return fail("a rank went away, " + reason(), error);
  return true;
}

bool Rendezvous::meet(uint64_t agreement, int64_t bytes, Descriptor* memory, std::string* error) {
  for (int peer = 0; peer < rank_; ++peer)
    if (!call(peer, agreement, error)) return false;
  for (int peer = rank_ + 1; peer < size_; ++peer)
    while (!links_[static_cast<size_t>(peer)].valid())
      if (!answer(agreement, error)) return false;
  listener_ = Descriptor();
  if (rank_ == 0) return create_memory(bytes, memory, error);
  *memory = receive_descriptor(links_[0].get());
  return memory->valid() || fail("rank 0 went away before it had shared its memory", error);
}

int Rendezvous::find_gone() const {
  for (int peer = 0; peer < size_; ++peer) {
    const Descriptor& link = links_[static_cast<size_t>(peer)];
    pollfd state{link.get(), POLLIN, 0};
    // Nobody sends anything more, so whatever happens on a link is its end.
    if (link.valid() && poll(&state, 1, 0) != 0) return peer;
  }
  return -1;
}

}  // namespace cpu_backend::collectives
