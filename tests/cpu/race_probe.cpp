// Races on purpose: where ThreadSanitizer runs it notices, and this program ends with its exit code.
#include <thread>

int shared = 0;

int main() {
  std::thread other([] { ++shared; });
  ++shared;
  other.join();
  return 0;
}
