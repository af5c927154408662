// host_cuda: runs a grid. A Worker, one for each host thread, takes blocks; each CUDA thread of its block is a fiber
// that runs until it waits at a barrier or in an operation of its warp. A waiting fiber switches straight to the next
// one that is ready, and to the worker when the block is done.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <host_cuda/engine.hpp>
#include <host_cuda/host_cuda.hpp>
#include <memory>
#include <mutex>
#include <numeric>
#include <pn/half.hpp>
#include <thread>
#include <vector>

#include "context.hpp"

__thread uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace host_cuda {
namespace {

// ---- Settings ----

Order order_from_environment(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0' || std::strcmp(text, "forward") == 0) return {};
  if (std::strcmp(text, "reverse") == 0) return {Order::reverse, 0};
  char* end = nullptr;
  const std::uint64_t seed = std::strtoull(text, &end, 10);
  if (*end == '\0') return {Order::shuffled, seed};
  std::fprintf(stderr, "host_cuda: %s=%s is neither forward nor reverse nor a number\n", name, text);
  std::abort();
}

int threads_from_environment() {
  const char* text = std::getenv("HOST_CUDA_THREADS");
  return text == nullptr ? 1 : std::max(1, std::atoi(text));
}

struct Settings {
  Order threads = order_from_environment("HOST_CUDA_ORDER");
  Order blocks = order_from_environment("HOST_CUDA_BLOCK_ORDER");
  int host_threads = threads_from_environment();
  bool record_faults = false;
  bool strict = true;
};

Settings& settings() {
  static Settings all;
  return all;
}

std::mutex fault_mutex;
std::string first_fault;

// Aborts, or keeps the text for take_fault.
void report(const std::string& text) {
  if (!settings().record_faults) {
    std::fprintf(stderr, "host_cuda: %s\n", text.c_str());
    std::abort();
  }
  const std::lock_guard<std::mutex> lock(fault_mutex);
  if (first_fault.empty()) first_fault = text;
}

// ---- Small helpers ----

std::string describe(const char* what, uint3 v) {
  return std::string(what) + " (" + std::to_string(v.x) + "," + std::to_string(v.y) + "," + std::to_string(v.z) + ")";
}

std::string describe(Site site) {
  const char* slash = std::strrchr(site.file, '/');
  return std::string(slash == nullptr ? site.file : slash + 1) + ":" + std::to_string(site.line);
}

bool same(const char* a, const char* b) { return a == b || std::strcmp(a, b) == 0; }
bool same(Site a, Site b) { return a.line == b.line && same(a.file, b.file); }

uint3 unfold(std::uint64_t index, dim3 extent) {
  return {static_cast<unsigned>(index % extent.x), static_cast<unsigned>(index / extent.x % extent.y),
          static_cast<unsigned>(index / extent.x / extent.y)};
}

// splitmix64
std::uint64_t random(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9E3779B97F4A7C15u);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// A permutation of 0 .. count - 1 that needs no memory: i -> first + i * step, whose step has no factor with count.
struct BlockOrder {
  std::uint64_t count, first = 0, step = 1;
  BlockOrder(std::uint64_t blocks, Order order) : count(blocks) {
    if (order.kind == Order::reverse) first = step = count - 1;
    if (order.kind != Order::shuffled) return;
    std::uint64_t state = order.seed;
    first = random(state) % count;
    do step = random(state) % count;
    while (std::gcd(step, count) != 1);
  }
  std::uint64_t operator()(std::uint64_t i) const {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(i) * step + first) % count);
  }
};

}  // namespace

void set_thread_order(Order order) { settings().threads = order; }
void set_block_order(Order order) { settings().blocks = order; }
void set_host_threads(int threads) { settings().host_threads = std::max(1, threads); }
void record_faults(bool record) { settings().record_faults = record; }
void set_strict(bool strict) { settings().strict = strict; }

std::string take_fault() {
  const std::lock_guard<std::mutex> lock(fault_mutex);
  return std::exchange(first_fault, {});
}

namespace engine {

// Lanes of a warp in one operation with one mask. It waits while `arrived` grows to `mask`; complete, it holds the
// values until each of the lanes has left, so that it cannot be used again before.
struct Collective {
  unsigned mask, arrived = 0, present = 0, to_leave = 0;
  const char* operation;
  Site site;
  char token;  // for ThreadSanitizer
  unsigned char values[32][Exchange::max_bytes];
};

namespace {

enum class State : unsigned char { ready, at_barrier, in_warp, finished };

struct Fiber {
  Context context;
  uint3 index;
  unsigned number;
  State state;
  Site site;              // where it waits or waited last
  const char* operation;  // and in what
};

struct Warp {
  unsigned alive;  // lanes that have not exited
  std::vector<std::unique_ptr<Collective>> collectives;
};

// Stacks with a page below each that traps; kept from launch to launch.
class Stacks {
 public:
  static constexpr std::size_t bytes = has_asan || has_tsan ? 512 * 1024 : 128 * 1024;
  Stacks() = default;
  ~Stacks() { unmap(); }
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  void reserve(std::size_t count) {
    if (count <= count_) return;
    unmap();
    page_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    count_ = count;
    map(nullptr, 0);
    for (std::size_t i = 0; i < count; ++i) mprotect(memory_ + i * pitch(), page_, PROT_NONE);
  }
  // Other memory at the same addresses: ThreadSanitizer forgets who used it (and the pages that trap are gone).
  void renew() { map(memory_, MAP_FIXED); }
  char* stack(std::size_t i) const { return memory_ + i * pitch() + page_; }

 private:
  std::size_t pitch() const { return bytes + page_; }
  void map(void* where, int flags) {
    flags |= MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* const memory = mmap(where, count_ * pitch(), PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) {
      std::perror("host_cuda: stacks");
      std::abort();
    }
    memory_ = static_cast<char*>(memory);
  }
  void unmap() {
    if (count_ != 0) munmap(memory_, count_ * pitch());
    count_ = 0;
  }
  char* memory_ = nullptr;
  std::size_t count_ = 0, page_ = 0;
};

// Dynamic shared memory of one block: NaN bytes at first. With ASan its bounds are exact; otherwise guards around it
// show writes that left it.
class SharedMemory {
 public:
  explicit SharedMemory(std::size_t bytes) : bytes_(bytes) {
    const Quiet quiet;
    void* memory = nullptr;
    if (posix_memalign(&memory, 128, guard + bytes + guard) != 0) std::abort();
    memory_ = static_cast<unsigned char*>(memory);
    std::memset(memory_, pattern, guard + bytes + guard);
    std::memset(data(), 0xFF, bytes);
  }
  ~SharedMemory() {
    const Quiet quiet;
    std::free(memory_);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  unsigned char* data() const { return memory_ + guard; }

  // Empty, or where the nearest overwritten byte lies.
  std::string damage() const {
    const Quiet quiet;
    for (std::size_t i = 0; i < guard; ++i) {
      if (data()[bytes_ + i] != pattern) return std::to_string(i) + " bytes behind its end";
      if (memory_[guard - 1 - i] != pattern) return std::to_string(i + 1) + " bytes before its begin";
    }
    return {};
  }

 private:
  static constexpr std::size_t guard = has_asan ? 0 : 128;
  static constexpr unsigned char pattern = 0xA5;
  unsigned char* memory_;
  std::size_t bytes_;
};

// Runs blocks, one after another, on the calling host thread.
class Worker {
 public:
  struct Abandoned {};  // thrown from a recorded fault to the bottom of its fiber

  // Takes blocks from `next` until there are none or `stop` is set, which a fault sets.
  void run(const Launch& launch, int capability, const BlockOrder& order, std::atomic<std::uint64_t>& next,
           std::atomic<bool>& stop);

  // What device code needs; all of it runs on a fiber.
  [[noreturn]] void fault(const std::string& what, Site site) const;
  int barrier(Barrier kind, bool predicate, Site site);
  Collective* join(const char* operation, unsigned mask, const void* value, std::size_t bytes, Site site,
                   bool orders_memory);
  void* shared() const { return shared_; }
  unsigned lane() const { return running_->number % 32; }
  int capability() const { return capability_; }

 private:
  static void fiber_main();
  void start_block(std::uint64_t block);
  void retire(std::size_t keep);
  bool finish_block(const SharedMemory& shared);
  Fiber* exit_thread();
  void complete_barrier();
  void complete(Collective& collective, Warp& own);
  void wait(State state, const char* operation, Site site);
  void go_on(Fiber* next);
  Fiber* next_ready();
  void make_order();
  void new_order();
  [[noreturn]] void deadlock() const;
  std::string place(const Fiber& fiber) const;
  Warp& warp() { return warps_[running_->number / 32]; }

  const Launch* launch_ = nullptr;
  int capability_ = 0;
  Stacks stacks_;
  Context host_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<Context> ended_;
  Fiber* running_ = nullptr;
  void* shared_ = nullptr;

  std::vector<unsigned> order_;  // numbers of the fibers, as they take turns
  std::size_t cursor_ = 0;
  std::uint64_t random_ = 0;

  unsigned live_ = 0;  // threads that have not exited
  unsigned at_barrier_ = 0, true_at_barrier_ = 0;
  unsigned barrier_total_ = 0, barrier_true_ = 0;  // of the last complete barrier
  Fiber* first_at_barrier_ = nullptr;
  char barrier_tokens_[2] = {}, end_token_ = 0;  // for ThreadSanitizer: two barriers in a row must not look like one
  unsigned barriers_ = 0;

  std::uint64_t switches_ = 0;
};

std::atomic<std::uint64_t> all_switches{0};

// The worker that the calling host thread is in; __thread, so that reading it calls nothing.
__thread Worker* current = nullptr;

// ---- Blocks ----

void Worker::run(const Launch& launch, int capability, const BlockOrder& order, std::atomic<std::uint64_t>& next,
                 std::atomic<bool>& stop) {
  const dim3 b = launch.block;
  const std::size_t threads = std::size_t{b.x} * b.y * b.z;
  launch_ = &launch;
  capability_ = capability;
  stacks_.reserve(threads);
  fibers_.resize(threads);
  warps_.resize((threads + 31) / 32);
  describe_host(host_);
  current = this;
  blockDim = b;
  gridDim = launch.grid;
  make_order();
  switches_ = 0;
  while (!stop.load(std::memory_order_relaxed)) {
    const std::uint64_t i = next.fetch_add(1, std::memory_order_relaxed);
    if (i >= order.count) break;
    start_block(order(i));
    const SharedMemory shared(launch.shared);
    shared_ = shared.data();
    go_on(next_ready());
    if (!finish_block(shared)) stop.store(true, std::memory_order_relaxed);
  }
  acquire(&end_token_);
  retire(0);
  current = nullptr;
  all_switches += switches_;
}

void Worker::start_block(std::uint64_t block) {
  const Quiet quiet;
  if (has_tsan) stacks_.renew();
  blockIdx = unfold(block, launch_->grid);
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    const std::size_t lanes = std::min<std::size_t>(32, fibers_.size() - 32 * w);
    warps_[w].alive = lanes == 32 ? 0xFFFFFFFFu : (1u << lanes) - 1;
    warps_[w].collectives.clear();
  }
  for (unsigned i = 0; i < fibers_.size(); ++i) {
    Fiber& fiber = fibers_[i];
    fiber.index = unfold(i, launch_->block);
    fiber.number = i;
    fiber.state = State::ready;
    fiber.context.stack = stacks_.stack(i);
    fiber.context.stack_bytes = Stacks::bytes;
    // Tops of stacks at different distances from pages, so that they do not compete for the same lines of the cache.
    prepare(fiber.context, stacks_.stack(i) + Stacks::bytes - i % 32 * 128, &Worker::fiber_main);
    create_sanitizer_fiber(fiber.context);
  }
  live_ = static_cast<unsigned>(fibers_.size());
  at_barrier_ = true_at_barrier_ = barriers_ = 0;
  random_ = settings().threads.seed ^ (block << 20);
  host_.stack = nullptr;
  new_order();
}

// ThreadSanitizer takes a new fiber that got the number of an ended one for the same thread, and misses races between
// the blocks of the two: so up to `keep` ended ones are kept.
void Worker::retire(std::size_t keep) {
  if (ended_.size() <= keep) return;
  for (Context& context : ended_) destroy_sanitizer_fiber(context);
  ended_.clear();
}

// False after a fault.
bool Worker::finish_block(const SharedMemory& shared) {
  running_ = nullptr;
  if (live_ != 0) {  // a fault left fibers behind
    for (std::size_t i = 0; i < fibers_.size(); ++i) unpoison(stacks_.stack(i), Stacks::bytes);
    return false;
  }
  if (has_tsan) {
    for (const Fiber& fiber : fibers_) ended_.push_back(fiber.context);
    retire(1024);
  }
  const std::string damage = shared.damage();
  if (damage.empty()) return true;
  report("a write outside the dynamic shared memory, " + damage + "; " + describe("block", blockIdx));
  return false;
}

// ---- Turns ----

void Worker::make_order() {
  order_.resize(fibers_.size());
  std::iota(order_.begin(), order_.end(), 0u);
  if (settings().threads.kind == Order::reverse) std::reverse(order_.begin(), order_.end());
}

void Worker::new_order() {
  cursor_ = 0;
  if (settings().threads.kind != Order::shuffled) return;
  for (std::size_t i = order_.size() - 1; i > 0; --i) std::swap(order_[i], order_[random(random_) % (i + 1)]);
}

// Unless the order is `forward`, a warp runs ahead of the others as far as it can: to a barrier of the block. Its lanes
// take turns from the last to the first, or in some order.
Fiber* Worker::next_ready() {
  const Order::Kind kind = settings().threads.kind;
  if (kind != Order::forward && running_ != nullptr) {
    const std::size_t first = static_cast<std::size_t>(running_ - fibers_.data()) / 32 * 32;
    const std::size_t turned = kind == Order::reverse ? 31 : random(random_) % 32;
    for (std::size_t lane = 0; lane < 32; ++lane) {
      const std::size_t i = first + (lane ^ turned);
      if (i < fibers_.size() && fibers_[i].state == State::ready) return &fibers_[i];
    }
  }
  for (std::size_t tried = 0; tried < 2 * fibers_.size(); ++tried) {
    if (cursor_ == order_.size()) new_order();
    Fiber& fiber = fibers_[order_[cursor_++]];
    if (fiber.state == State::ready) return &fiber;
  }
  deadlock();
}

// Leaves the running context, a fiber's or, while none runs, the host thread's, for that of `next`; null is the latter.
HOST_CUDA_UNSANITIZED void Worker::go_on(Fiber* next) {
  Fiber* const from = running_;
  if (from == next) return;
  running_ = next;
  if (next != nullptr) threadIdx = next->index;
  ++switches_;
  switch_context(from == nullptr ? host_ : from->context, next == nullptr ? host_ : next->context,
                 from != nullptr && from->state == State::finished);
}

void Worker::wait(State state, const char* operation, Site site) {
  running_->state = state;
  running_->operation = operation;
  running_->site = site;
}

HOST_CUDA_UNSANITIZED void Worker::fiber_main() {
  Worker& worker = *current;
  enter_context(worker.host_);
  Fiber* next = nullptr;
  try {
    worker.launch_->body();
    next = worker.exit_thread();
  } catch (const Abandoned&) {
  }
  worker.running_->state = State::finished;
  worker.go_on(next);
  std::abort();  // nobody comes back here
}

// Returns who is next; null when the block is done.
Fiber* Worker::exit_thread() {
  release(&end_token_);
  const Quiet quiet;
  Warp& own = warp();
  running_->state = State::finished;
  own.alive &= ~(1u << lane());
  for (const auto& collective : own.collectives) complete(*collective, own);
  --live_;
  complete_barrier();
  if (live_ == 0) return nullptr;
  return next_ready();
}

// ---- Faults ----

std::string Worker::place(const Fiber& fiber) const { return describe("thread", fiber.index); }

void Worker::fault(const std::string& what, Site site) const {
  const Quiet quiet;
  report(what + "; " + describe("block", blockIdx) + " " + place(*running_) + " at " + describe(site));
  throw Abandoned();
}

void Worker::deadlock() const {
  std::string text = "deadlock: no thread can go on; " + describe("block", blockIdx);
  for (const Fiber& fiber : fibers_) {
    const auto waits_alike = [&](const Fiber& other) {
      return other.state == fiber.state && (fiber.state == State::finished || same(other.site, fiber.site));
    };
    const Fiber* const first = &*std::find_if(fibers_.begin(), fibers_.end(), waits_alike);
    if (first != &fiber) continue;
    const auto alike = std::count_if(fibers_.begin(), fibers_.end(), waits_alike);
    text += "\n  " + std::to_string(alike) + " from " + place(fiber) + " on ";
    text += fiber.state == State::finished ? "exited"
                                           : std::string("wait in ") + fiber.operation + " at " + describe(fiber.site);
  }
  report(text);
  throw Abandoned();
}

// ---- Barriers ----

const char* name(Barrier kind) {
  switch (kind) {
    case Barrier::any: return "__syncthreads_or";
    case Barrier::all: return "__syncthreads_and";
    case Barrier::count: return "__syncthreads_count";
    default: return "__syncthreads";
  }
}

int Worker::barrier(Barrier kind, bool predicate, Site site) {
  const Quiet quiet;
  wait(State::at_barrier, name(kind), site);
  if (at_barrier_ == 0) first_at_barrier_ = running_;
  const Fiber& first = *first_at_barrier_;
  if (!same(first.site, site) || !same(first.operation, running_->operation)) {
    fault("threads of a block at different barriers: " + place(first) + " waits in " + first.operation + " at " +
              describe(first.site) + ", another in " + name(kind),
          site);
  }
  char* const token = &barrier_tokens_[barriers_ % 2];
  release(token);
  ++at_barrier_;
  true_at_barrier_ += predicate ? 1 : 0;
  complete_barrier();
  go_on(next_ready());
  acquire(token);
  if (kind == Barrier::any) return barrier_true_ != 0;
  if (kind == Barrier::all) return barrier_true_ == barrier_total_;
  return static_cast<int>(barrier_true_);
}

// Lets all threads go on when all that have not exited are there. (The totals stay until the next barrier is complete,
// which needs every thread.)
void Worker::complete_barrier() {
  if (at_barrier_ == 0 || at_barrier_ != live_) return;
  if (settings().strict && live_ != fibers_.size()) {
    report(std::to_string(fibers_.size() - live_) + " exited threads cannot reach the " + first_at_barrier_->operation +
           " of others; " + describe("block", blockIdx) + " " + place(*first_at_barrier_) + " at " +
           describe(first_at_barrier_->site));
    throw Abandoned();
  }
  barrier_total_ = at_barrier_;
  barrier_true_ = true_at_barrier_;
  at_barrier_ = true_at_barrier_ = 0;
  ++barriers_;
  for (Fiber& fiber : fibers_) {
    if (fiber.state == State::at_barrier) fiber.state = State::ready;
  }
  new_order();
}

// ---- Operations of a warp ----

Collective* Worker::join(const char* operation, unsigned mask, const void* value, std::size_t bytes, Site site,
                         bool orders_memory) {
  const unsigned own_lane = lane();
  Warp& own = warp();
  if (((mask >> own_lane) & 1) == 0) fault(std::string("the caller is not in the mask of its ") + operation, site);

  Collective* collective = nullptr;
  for (const auto& candidate : own.collectives) {
    const bool open = candidate->arrived != 0, idle = !open && candidate->to_leave == 0;
    if (open && candidate->mask == mask) {
      collective = candidate.get();
      break;
    }
    if (idle) collective = candidate.get();
  }
  if (collective == nullptr) {
    own.collectives.push_back(std::make_unique<Collective>());
    collective = own.collectives.back().get();
  }

  if (collective->arrived == 0) {
    collective->mask = mask;
    collective->operation = operation;
    collective->site = site;
  } else if (!same(collective->operation, operation) || !same(collective->site, site)) {
    fault("lanes of one warp and mask in different operations: some in " + std::string(collective->operation) + " at " +
              describe(collective->site) + ", one in " + operation,
          site);
  }
  std::memcpy(collective->values[own_lane], value, bytes);
  if (orders_memory) release(&collective->token);
  collective->arrived |= 1u << own_lane;
  wait(State::in_warp, operation, site);
  complete(*collective, own);
  if (running_->state != State::ready) go_on(next_ready());
  if (orders_memory) acquire(&collective->token);
  return collective;
}

void Worker::complete(Collective& collective, Warp& own) {
  if (collective.arrived == 0 || collective.arrived != (collective.mask & own.alive)) return;
  collective.present = collective.to_leave = std::exchange(collective.arrived, 0);
  Fiber* const first = &fibers_[static_cast<std::size_t>(&own - warps_.data()) * 32];
  for (unsigned lane = 0; lane < 32; ++lane) {
    if ((collective.present >> lane) & 1) first[lane].state = State::ready;
  }
}

}  // namespace

// ---- What engine.hpp declares ----

bool in_kernel() { return current != nullptr; }
std::uint64_t switches() { return all_switches; }

void* shared_memory() {
  const Quiet quiet;
  return current->shared();
}

unsigned lane() {
  const Quiet quiet;
  return current->lane();
}

void fault(const std::string& what, Site site) { current->fault(what, site); }
int barrier(Barrier kind, bool predicate, Site site) { return current->barrier(kind, predicate, site); }

Exchange::Exchange(const char* operation, unsigned mask, const void* value, std::size_t bytes, Site site,
                   bool orders_memory) {
  const Quiet quiet;
  collective_ = current->join(operation, mask, value, bytes, site, orders_memory);
  lanes_ = collective_->present;
}

Exchange::~Exchange() {
  const Quiet quiet;
  collective_->to_leave &= ~(1u << lane());
}

void Exchange::read(unsigned lane, void* value, std::size_t bytes) const {
  const Quiet quiet;
  std::memcpy(value, collective_->values[lane], bytes);
}

void shuffle(const char* operation, unsigned mask, void* value, std::size_t bytes, unsigned source, Site site) {
  const Quiet quiet;
  const Exchange exchange(operation, mask, value, bytes, site);
  if ((exchange.lanes() >> source) & 1) return exchange.read(source, value, bytes);
  if (settings().strict) {
    fault(std::string(operation) + " reads lane " + std::to_string(source) + ", which does not take part", site);
  }
  std::memset(value, 0xFF, bytes);
}

unsigned vote(const char* operation, unsigned mask, bool predicate, unsigned& held, Site site) {
  const Quiet quiet;
  const Exchange exchange(operation, mask, &predicate, sizeof predicate, site);
  held = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    if (((exchange.lanes() >> lane) & 1) == 0) continue;
    bool value = false;
    exchange.read(lane, &value, sizeof value);
    held |= (value ? 1u : 0u) << lane;
  }
  return exchange.lanes();
}

void mma_m16n8k16(Factors factors, float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1,
                  Site site) {
  const Quiet quiet;
  if (current->capability() < 80) fault("mma.m16n8k16 on a device older than 8.0", site);
  // Each lane publishes its twelve factors as numbers: register r, halves low and high, at 2 r and 2 r + 1.
  float own[12];
  const std::uint32_t registers[6] = {a[0], a[1], a[2], a[3], b0, b1};
  for (unsigned r = 0; r < 6; ++r) {
    const auto low = static_cast<std::uint16_t>(registers[r] & 0xFFFFu);
    const auto high = static_cast<std::uint16_t>(registers[r] >> 16);
    own[2 * r] = factors == Factors::f16 ? pn::half_to_float(low) : pn::bf16_to_float(low);
    own[2 * r + 1] = factors == Factors::f16 ? pn::half_to_float(high) : pn::bf16_to_float(high);
  }
  const Exchange exchange("mma.m16n8k16", 0xFFFFFFFFu, own, sizeof own, site);
  if (exchange.lanes() != 0xFFFFFFFFu) fault("mma.m16n8k16 without all lanes of the warp", site);

  const unsigned g = lane() / 4, t = lane() % 4;
  float rows[4][12], columns[2][4][12];  // from the lanes that hold rows g and g + 8 of a, columns 2 t and 2 t + 1 of b
  for (unsigned i = 0; i < 4; ++i) {
    exchange.read(4 * g + i, rows[i], sizeof rows[i]);
    for (unsigned j = 0; j < 2; ++j) exchange.read(4 * (2 * t + j) + i, columns[j][i], sizeof columns[j][i]);
  }
  for (unsigned r = 0; r < 4; ++r) {  // d[r] is in row g + 8 * (r / 2), column 2 t + r % 2
    double sum = static_cast<double>(d[r]);
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned holder = k % 8 / 2, upper = k / 8, odd = k % 2;
      sum += static_cast<double>(rows[holder][2 * (r / 2 + 2 * upper) + odd]) *
             static_cast<double>(columns[r % 2][holder][2 * (4 + upper) + odd]);
    }
    d[r] = static_cast<float>(sum);
  }
}

bool run(const Launch& launch, int compute_capability) {
  const BlockOrder order(std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z, settings().blocks);
  std::atomic<std::uint64_t> next{0};
  std::atomic<bool> stop{false};
  static thread_local Worker own;  // keeps its stacks
  const auto others = std::min<std::uint64_t>(order.count, static_cast<std::uint64_t>(settings().host_threads)) - 1;
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < others; ++i) {
    threads.emplace_back([&] { Worker().run(launch, compute_capability, order, next, stop); });
  }
  own.run(launch, compute_capability, order, next, stop);
  for (std::thread& thread : threads) thread.join();
  return !stop;
}

}  // namespace engine
}  // namespace host_cuda

void __syncwarp(unsigned mask, host_cuda::Site site) {
  const host_cuda::engine::Quiet quiet;
  const host_cuda::engine::Exchange exchange("__syncwarp", mask, "", 1, site, true);
}
