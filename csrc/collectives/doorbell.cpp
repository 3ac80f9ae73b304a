#include "collectives/doorbell.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace cpu_backend::collectives {

// Not FUTEX_PRIVATE_FLAG: the word is shared between processes.

void Doorbell::yield() { sched_yield(); }

void Doorbell::nap(uint32_t heard) {
  const timespec limit{0, std::chrono::nanoseconds(kNap).count()};
  syscall(SYS_futex, &rings, FUTEX_WAIT, heard, &limit, nullptr, 0);
}

void Doorbell::wake() {
  rings.fetch_add(1, std::memory_order_seq_cst);
  syscall(SYS_futex, &rings, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace cpu_backend::collectives
