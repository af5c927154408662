// host_cuda: switching between fibers, and what sanitizers must be told about it.
#ifndef HOST_CUDA_CONTEXT_HPP
#define HOST_CUDA_CONTEXT_HPP

#include <cstddef>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__ 1
#endif
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

// One instruction set has its own switch, which takes nanoseconds; ucontext works anywhere and takes two system calls.
#if !defined(__x86_64__) || defined(HOST_CUDA_UCONTEXT)
#undef HOST_CUDA_UCONTEXT
#define HOST_CUDA_UCONTEXT 1
#include <ucontext.h>
#endif

#define HOST_CUDA_UNSANITIZED __attribute__((no_sanitize("address", "undefined", "thread")))

namespace host_cuda::engine {

// While one lives, ThreadSanitizer ignores what the running fiber does: the engine's own bookkeeping is no race, and
// only what `release` and `acquire` say orders the memory of CUDA threads.
class Quiet {
 public:
#if defined(__SANITIZE_THREAD__)
  Quiet() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Quiet() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  Quiet() {}
  ~Quiet() = default;
#endif
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;
};

// All that a thread did before release(token) comes before all that another does after acquire(token).
inline void release([[maybe_unused]] void* token) {
#if defined(__SANITIZE_THREAD__)
  __tsan_release(token);
#endif
}
inline void acquire([[maybe_unused]] void* token) {
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(token);
#endif
}

#if defined(__SANITIZE_ADDRESS__)
constexpr bool has_asan = true;
inline void unpoison(const void* memory, std::size_t bytes) { __asan_unpoison_memory_region(memory, bytes); }
#else
constexpr bool has_asan = false;
inline void unpoison(const void*, std::size_t) {}
#endif
#if defined(__SANITIZE_THREAD__)
constexpr bool has_tsan = true;
#else
constexpr bool has_tsan = false;
#endif

// A suspended flow of control: a fiber, or the host thread that runs them.
struct Context {
  const void* stack = nullptr;  // lowest address
  std::size_t stack_bytes = 0;
#if defined(HOST_CUDA_UCONTEXT)
  ucontext_t saved;
#else
  void* stack_pointer = nullptr;
#endif
  void* fake_stack = nullptr;  // of AddressSanitizer
  void* tsan_fiber = nullptr;
};

// Makes `context` one that calls `entry`, which must not return, below `top` on the context's stack.
void prepare(Context& context, void* top, void (*entry)());

// Suspends `from`, the running context, and goes on with `to`. `ends`: `from` will never be resumed.
void switch_context(Context& from, Context& to, bool ends);

// To be called first on every new context; fills the stack of `host` when it came from there and has none yet.
void enter_context(Context& host);

// The calling host thread's own context; a fiber for ThreadSanitizer, and its end.
void describe_host(Context& context);
void create_sanitizer_fiber(Context& context);
void destroy_sanitizer_fiber(Context& context);

}  // namespace host_cuda::engine

#endif  // HOST_CUDA_CONTEXT_HPP
