// A machine for one program: loads a static Linux executable and answers its few system calls.
//
// run.sh compiles it into the emulated machine's ROM.  The disk holds the program's arguments and
// environment, then the executable.  What the program prints leaves through the first serial port,
// its exit status through the second.  What is not answered here is ENOSYS: no files, no threads,
// no signals.  Memory is zero at power-on.
#include <elf.h>

#include <cstdint>
#include <initializer_list>

namespace {

// Memory, 128 MiB: machine.ld has the first MiB, the program's segments begin at 4 MiB.
constexpr uint64_t kBreakEnd = 0x02000000;
constexpr uint64_t kStackEnd = 0x02800000;
constexpr uint64_t kMapBegin = kStackEnd;  // mmap takes from here up to the copy of the disk
constexpr uint64_t kDisk = 0x06000000;
constexpr uint64_t kMemoryEnd = 0x08000000;
constexpr uint64_t kPage = 4096;
// The disk: argv, an empty string, the environment, an empty string; at 64 KiB the executable.
constexpr uint64_t kExecutable = kDisk + 0x10000;

constexpr uint16_t kOutput = 0x3f8;  // serial ports
constexpr uint16_t kStatus = 0x2f8;
constexpr uint16_t kAta = 0x1f0;
constexpr uint16_t kBochs = 0x8900;  // "Shutdown" ends the emulator

constexpr int64_t kNoMemory = -12, kInvalid = -22, kNoSystemCall = -38;

uint64_t break_begin, break_now, map_now;

uint64_t round_to_page(uint64_t address) { return (address + kPage - 1) & -kPage; }

void out(uint16_t port, uint8_t value) { asm volatile("outb %0, %1" ::"a"(value), "d"(port)); }
uint8_t in(uint16_t port) {
  uint8_t value;
  asm volatile("inb %1, %0" : "=a"(value) : "d"(port));
  return value;
}
void copy(uint64_t to, uint64_t from, uint64_t size) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size)::"memory");
}
void clear(uint64_t to, uint64_t size) {
  asm volatile("rep stosb" : "+D"(to), "+c"(size) : "a"(0) : "memory");
}

void open_serial(uint16_t port) {
  out(port + 3, 0x80);
  out(port, 1);  // 115,200 baud
  out(port + 1, 0);
  out(port + 3, 3);  // 8 bits
}
void put(uint16_t port, char c) {
  out(port, static_cast<uint8_t>(c));
  while (!(in(port + 5) & 0x40)) continue;  // until it has left
}
void put_text(const char* text) {
  while (*text) put(kOutput, *text++);
}
void put_hex(uint64_t value) {
  put_text("0x");
  for (int shift = 60; shift >= 0; shift -= 4)
    put(kOutput, "0123456789abcdef"[value >> shift & 15]);
}

[[noreturn]] void power_off(int status) {
  for (int digit : {status / 100, status / 10 % 10, status % 10})
    put(kStatus, static_cast<char>('0' + digit));
  for (const char* c = "Shutdown"; *c; ++c) out(kBochs, static_cast<uint8_t>(*c));
  for (;;) asm volatile("hlt");
}

// The sector that an ATA command delivers.
void read_sector(uint8_t command, uint32_t sector, uint16_t* to) {
  out(kAta + 2, 1);
  out(kAta + 3, static_cast<uint8_t>(sector));
  out(kAta + 4, static_cast<uint8_t>(sector >> 8));
  out(kAta + 5, static_cast<uint8_t>(sector >> 16));
  out(kAta + 6, static_cast<uint8_t>(0xe0 | sector >> 24));  // first disk, linear addresses
  out(kAta + 7, command);
  while ((in(kAta + 7) & 0x88) != 8) continue;  // until not busy and data wait
  uint64_t words = 256;
  asm volatile("rep insw" : "+D"(to), "+c"(words) : "d"(kAta) : "memory");
}
void read_disk() {
  uint16_t* to = reinterpret_cast<uint16_t*>(kDisk);
  read_sector(0xec, 0, to);  // IDENTIFY
  const uint32_t sectors = to[60] | static_cast<uint32_t>(to[61]) << 16;
  if (sectors > (kMemoryEnd - kDisk) / 512) {
    put_text("the program does not fit into the machine's memory\n");
    power_off(126);
  }
  for (uint32_t i = 0; i < sectors; ++i) read_sector(0x20, i, to + 256 * i);
}

// Copies the segments; the address of the program headers among them.
uint64_t load(const Elf64_Ehdr& file) {
  uint64_t headers = 0;
  const auto* segments = reinterpret_cast<const Elf64_Phdr*>(kExecutable + file.e_phoff);
  for (int i = 0; i < file.e_phnum; ++i) {
    const Elf64_Phdr& s = segments[i];
    if (s.p_type != PT_LOAD) continue;
    copy(s.p_vaddr, kExecutable + s.p_offset, s.p_filesz);
    if (s.p_offset == 0) headers = s.p_vaddr + file.e_phoff;
    const uint64_t end = round_to_page(s.p_vaddr + s.p_memsz);
    if (end > break_begin) break_begin = break_now = end;
  }
  return headers;
}

// Appends the addresses of the strings at `text`, up to an empty one, and a null pointer.
uint64_t* push_strings(uint64_t* stack, const char*& text) {
  while (*text) {
    *stack++ = reinterpret_cast<uint64_t>(text);
    while (*text++) continue;
  }
  ++text;
  *stack++ = 0;
  return stack;
}

}  // namespace

extern "C" {

[[noreturn]] void enter(uint64_t entry, uint64_t* stack);
extern const char exception_entries[];
extern uint64_t idt[32][2];

[[noreturn]] void exception(uint64_t vector, uint64_t instruction, uint64_t address) {
  put_text(vector == 6    ? "invalid instruction"
           : vector == 13 ? "general protection fault"
           : vector == 14 ? "page fault"
                          : "exception");
  put_text(" at ");
  put_hex(instruction);
  put_text(", vector ");
  put_hex(vector);
  put_text(", CR2 ");
  put_hex(address);
  put_text("\n");
  power_off(vector == 6 ? 128 + 4 : 128 + 11);  // as a shell reports SIGILL and SIGSEGV
}

// What glibc asks for when it starts, allocates, reads the time, prints and leaves.
int64_t system_call(uint64_t number, uint64_t a, uint64_t b, uint64_t c) {
  switch (number) {
    case 1:  // write
      for (uint64_t i = 0; i < c; ++i) put(kOutput, reinterpret_cast<const char*>(b)[i]);
      return static_cast<int64_t>(c);
    case 9: {  // mmap, anonymous; never reused, so always zero
      const uint64_t begin = map_now;
      const uint64_t size = round_to_page(b);
      if (a || size > kDisk - begin) return kNoMemory;
      map_now += size;
      return static_cast<int64_t>(begin);
    }
    case 10:  // mprotect
    case 11:  // munmap
      return 0;
    case 12:  // brk
      if (a >= break_begin && a <= kBreakEnd) {
        if (a > break_now) clear(break_now, a - break_now);
        break_now = a;
      }
      return static_cast<int64_t>(break_now);
    case 158:             // arch_prctl
      if (a == 0x1002) {  // ARCH_SET_FS
        asm volatile("wrmsr" ::"c"(0xc0000100), "a"(b), "d"(b >> 32));
        return 0;
      }
      if (a == 0x1023 && b < 32) {  // ARCH_REQ_XCOMP_PERM: AMX asks before its first use
        uint32_t low, high;
        asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        return low >> b & 1 ? 0 : kInvalid;
      }
      return kInvalid;
    case 218:  // set_tid_address
      return 1;
    case 228: {  // clock_gettime: the emulated clock counts instructions, one per nanosecond
      uint32_t low, high;
      asm volatile("rdtsc" : "=a"(low), "=d"(high));
      const uint64_t now = static_cast<uint64_t>(high) << 32 | low;
      reinterpret_cast<uint64_t*>(b)[0] = now / 1000000000u;
      reinterpret_cast<uint64_t*>(b)[1] = now % 1000000000u;
      return 0;
    }
    case 60:   // exit
    case 231:  // exit_group
      power_off(static_cast<int>(a & 255));
    case 234:  // tgkill, by abort()
      power_off(128 + static_cast<int>(c & 127));
  }
  return kNoSystemCall;
}

[[noreturn]] void machine_main() {
  open_serial(kOutput);
  open_serial(kStatus);
  for (unsigned i = 0; i < 32; ++i) {
    const uint64_t entry = reinterpret_cast<uint64_t>(exception_entries) + 16 * i;
    idt[i][0] = (entry & 0xffff) | 0x18u << 16 | uint64_t{0x8e} << 40 | (entry >> 16) << 48;
  }
  read_disk();

  const auto& file = *reinterpret_cast<const Elf64_Ehdr*>(kExecutable);
  if (file.e_type != ET_EXEC || file.e_machine != EM_X86_64) {
    put_text("not a static x86-64 executable: link with -static\n");
    power_off(126);
  }
  const uint64_t headers = load(file);
  map_now = kMapBegin;

  auto* const stack = reinterpret_cast<uint64_t*>(kStackEnd - 16 * kPage);
  const char* text = reinterpret_cast<const char*>(kDisk);
  uint64_t* end = push_strings(stack + 1, text);
  stack[0] = static_cast<uint64_t>(end - stack - 2);  // argc
  end = push_strings(end, text);
  for (uint64_t value : {uint64_t{AT_PHDR}, headers, uint64_t{AT_PHENT}, uint64_t{file.e_phentsize},
                         uint64_t{AT_PHNUM}, uint64_t{file.e_phnum}, uint64_t{AT_PAGESZ}, kPage,
                         uint64_t{AT_RANDOM}, kExecutable, uint64_t{AT_NULL}, uint64_t{0}})
    *end++ = value;
  enter(file.e_entry, stack);
}

}  // extern "C"
