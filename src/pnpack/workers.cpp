#include "workers.hpp"

#include <system_error>
#include <utility>

namespace pnpack {

Workers::Workers(unsigned threads) {
  try {
    for (unsigned i = 1; i < threads; ++i) crew_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    // Fewer threads give the same bytes, later.
  }
}

Workers::~Workers() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : crew_) thread.join();
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
