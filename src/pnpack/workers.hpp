// A fixed crew of threads for loops whose iterations are independent.
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <vector>

namespace pnpack {

class Workers {
 public:
  // `threads` >= 1, the calling thread included. When the system gives fewer, the crew is smaller.
  explicit Workers(unsigned threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  std::size_t size() const noexcept { return crew_.size() + 1; }

  // Calls task(0) .. task(count - 1), each once, and returns when all are done. When tasks throw, rethrows one of the
  // exceptions after the others have ended.
  void for_each(std::size_t count, const std::function<void(std::size_t)>& task);

 private:
  void work();
  void take_tasks(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  const std::function<void(std::size_t)>* task_ = nullptr;
  std::size_t next_ = 0;
  std::size_t count_ = 0;
  std::size_t running_ = 0;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::vector<pthread_t> crew_;
};

}  // namespace pnpack
