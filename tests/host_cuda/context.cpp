#include "context.hpp"

#include <cstdint>
#include <cstring>

#if !defined(HOST_CUDA_UCONTEXT)
// Pushes the registers that a function must keep, changes stacks, pops them. (The rounding modes of fibers are one.)
extern "C" void host_cuda_switch(void** save, void* resume);
asm(R"(
  .text
  .globl host_cuda_switch
  .type host_cuda_switch, @function
host_cuda_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size host_cuda_switch, . - host_cuda_switch
)");
#endif

namespace host_cuda::engine {

void prepare(Context& context, void* top, void (*entry)()) {
#if defined(HOST_CUDA_UCONTEXT)
  getcontext(&context.saved);
  context.saved.uc_stack.ss_sp = const_cast<void*>(context.stack);
  context.saved.uc_stack.ss_size =
      static_cast<std::size_t>(static_cast<char*>(top) - static_cast<const char*>(context.stack));
  context.saved.uc_link = nullptr;
  makecontext(&context.saved, entry, 0);
#else
  // As host_cuda_switch leaves a stack: six registers, the address to go to; above, as if `entry` had been called.
  constexpr std::size_t registers = 6;
  void* frame[registers + 2] = {};
  std::memcpy(&frame[registers], &entry, sizeof entry);
  context.stack_pointer = static_cast<char*>(top) - sizeof frame;
  std::memcpy(context.stack_pointer, frame, sizeof frame);
#endif
  context.fake_stack = nullptr;
}

HOST_CUDA_UNSANITIZED void switch_context(Context& from, Context& to, [[maybe_unused]] bool ends) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(ends ? nullptr : &from.fake_stack, to.stack, to.stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(HOST_CUDA_UCONTEXT)
  swapcontext(&from.saved, &to.saved);
#else
  host_cuda_switch(&from.stack_pointer, to.stack_pointer);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
#endif
}

void enter_context([[maybe_unused]] Context& host) {
#if defined(__SANITIZE_ADDRESS__)
  const void* stack = nullptr;
  std::size_t bytes = 0;
  __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
  if (host.stack == nullptr) host.stack = stack, host.stack_bytes = bytes;
#endif
}

void describe_host(Context& context) {
  context.stack = nullptr;
#if defined(__SANITIZE_THREAD__)
  context.tsan_fiber = __tsan_get_current_fiber();
#endif
}

void create_sanitizer_fiber([[maybe_unused]] Context& context) {
#if defined(__SANITIZE_THREAD__)
  context.tsan_fiber = __tsan_create_fiber(0);
#endif
}

void destroy_sanitizer_fiber([[maybe_unused]] Context& context) {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(context.tsan_fiber);
#endif
}

}  // namespace host_cuda::engine
