#include "signals.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>

namespace pn::io {

// A handler may run at any moment: entries are never freed, only used again, and `armed` says when one is complete.
struct Pending::Entry {
  std::string path;
  What what = What::file;
  std::atomic<bool> armed{false};
  Entry* next = nullptr;
};

namespace {

std::atomic<Pending::Entry*> entries{nullptr};

// What the handler of SIGBUS writes, in memory that is never freed.
std::array<char, 16384> bus_error_text;
std::size_t bus_error_length = 0;
int bus_error_descriptor = STDERR_FILENO;

void remove_entry(Pending::Entry& entry) {
  if (!entry.armed.exchange(false)) return;
  if (entry.what == Pending::What::file) {
    ::unlink(entry.path.c_str());
  } else {
    ::rmdir(entry.path.c_str());
  }
}

extern "C" void on_signal(int signal) {
  for (const auto what : {Pending::What::file, Pending::What::folder})
    for (Pending::Entry* entry = entries; entry != nullptr; entry = entry->next)
      if (entry->what == what) remove_entry(*entry);
  if (signal == SIGBUS) {
    const ssize_t ignored = ::write(bus_error_descriptor, bus_error_text.data(), bus_error_length);
    static_cast<void>(ignored);
    ::_exit(3);
  }
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

}  // namespace

void handle_signals() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU, SIGALRM, SIGUSR1, SIGUSR2, SIGABRT, SIGBUS}) {
    struct sigaction current {};
    ::sigaction(signal, nullptr, &current);
    if (current.sa_handler == SIG_IGN) continue;  // for example under nohup
    struct sigaction action {};
    action.sa_handler = on_signal;
    ::sigemptyset(&action.sa_mask);
    ::sigaction(signal, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

void set_bus_error_message(const std::string& message, int descriptor) {
  bus_error_length = 0;
  const std::size_t length = std::min(message.size(), bus_error_text.size());
  std::memcpy(bus_error_text.data(), message.data(), length);
  bus_error_descriptor = descriptor;
  bus_error_length = length;
}

Pending::Pending(const std::string& path, What what) : entry_(entries) {
  while (entry_ != nullptr && entry_->armed) entry_ = entry_->next;
  if (entry_ == nullptr) {
    entry_ = new Entry;
    entry_->next = entries;
    entries = entry_;
  }
  entry_->path = path;
  entry_->what = what;
  entry_->armed = true;
}

void Pending::disarm() {
  if (entry_ != nullptr) entry_->armed = false;
  entry_ = nullptr;
}

void Pending::remove() {
  if (entry_ != nullptr) remove_entry(*entry_);
  entry_ = nullptr;
}

}  // namespace pn::io
