#include "workers.hpp"

#include <utility>

namespace pnpack {

namespace {

// Stacks count as data against memory limits, and no task needs the usual 8 MiB.
constexpr std::size_t stack_bytes = std::size_t{1} << 19;

}  // namespace

Workers::Workers(unsigned threads) {
  crew_.reserve(threads - 1);
  pthread_attr_t attributes;
  if (threads == 1 || ::pthread_attr_init(&attributes) != 0) return;
  ::pthread_attr_setstacksize(&attributes, stack_bytes);
  const auto start = [](void* self) -> void* {
    static_cast<Workers*>(self)->work();
    return nullptr;
  };
  while (crew_.size() + 1 < threads) {
    pthread_t thread{};
    // Fewer threads than wanted give the same bytes, later.
    if (::pthread_create(&thread, &attributes, start, this) != 0) break;
    crew_.push_back(thread);
  }
  ::pthread_attr_destroy(&attributes);
}

Workers::~Workers() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (const pthread_t thread : crew_) ::pthread_join(thread, nullptr);
}

void Workers::for_each(std::size_t count, const std::function<void(std::size_t)>& task) {
  std::unique_lock<std::mutex> lock(mutex_);
  task_ = &task;
  next_ = 0;
  count_ = count;
  if (count > 1) wake_.notify_all();
  take_tasks(lock);
  done_.wait(lock, [this] { return running_ == 0; });
  task_ = nullptr;
  count_ = 0;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Workers::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || next_ < count_; });
    if (stop_) return;
    take_tasks(lock);
  }
}

void Workers::take_tasks(std::unique_lock<std::mutex>& lock) {
  while (next_ < count_) {
    const std::size_t index = next_++;
    ++running_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      (*task_)(index);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure) {
      failure_ = failure;
      next_ = count_;
    }
    if (--running_ == 0) done_.notify_all();
  }
}

}  // namespace pnpack
