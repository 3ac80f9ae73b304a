// Definitions of this library's own, for what a compiler newer than glibc 2.28 and the libstdc++ of
// its time would have it ask of the system: with them it loads beside both.
#include <exception>
#include <new>
#include <sstream>

// Whether the process has one thread: libstdc++'s shared pointers read it, and glibc has it since
// 2.32.  There are many threads here at all times.
extern "C" {
__attribute__((visibility("hidden"))) extern char __libc_single_threaded;
char __libc_single_threaded = 0;
}

#if defined(__GLIBCXX__)
template class std::basic_stringbuf<char>;
template class std::basic_ostringstream<char>;

// What the copy constructor and the destructor do, which libstdc++ had before they were inline; in
// a later one they call these, so nobody else may find ours (torch_ops/ops.map).
extern "C" {
void _ZNSt15__exception_ptr13exception_ptrC1ERKS0_(void* made, const void* from);
void _ZNSt15__exception_ptr13exception_ptrD1Ev(void* exception);
}

namespace std {
namespace __exception_ptr {

void exception_ptr::_M_addref() noexcept {
  void* counted = nullptr;  // never destroyed
  _ZNSt15__exception_ptr13exception_ptrC1ERKS0_(&counted, this);
}

void exception_ptr::_M_release() noexcept {
  _ZNSt15__exception_ptr13exception_ptrD1Ev(this);
  _M_exception_object = nullptr;
}

}  // namespace __exception_ptr

void __throw_bad_array_new_length() { throw std::bad_array_new_length(); }

}  // namespace std
#endif
