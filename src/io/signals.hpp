// What must happen when a signal ends the process: unfinished outputs go away.
#pragma once

#include <string>

namespace pn::io {

// Installs handlers that remove what is pending (below) when a signal that asks a process to end (SIGINT, SIGTERM,
// SIGHUP, SIGQUIT, SIGXCPU, SIGALRM, SIGUSR1, SIGUSR2, SIGABRT) or SIGBUS does so, and makes writes to closed pipes or
// beyond the size limit return an error instead of a signal. For the main function of a program; call it once.
void handle_signals();

// What to say, and where, when SIGBUS ends the process with status 3: a mapped input became shorter, or its disk
// failed.
void set_bus_error_message(const std::string& message, int descriptor);

// A file, or a folder that is empty but for pending files, which a signal handler removes as long as this lives and is
// armed. For one thread at a time.
class Pending {
 public:
  enum class What { file, folder };
  Pending(const std::string& path, What what);
  ~Pending() { disarm(); }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

  void disarm();
  // Removes it now, and disarms.
  void remove();

  struct Entry;

 private:
  Entry* entry_;
};

}  // namespace pn::io
