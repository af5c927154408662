// Checks every kernel of libpncuda on this GPU against the core, then times them. bench/gpu.sh builds and runs it.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include "bench.hpp"

#if defined(PN_HOST_CUDA)
#include <host_cuda/host_cuda.hpp>
#endif

namespace gpu_bench {

void fail(const std::string& what) { throw std::runtime_error(what); }
void require(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(std::string(what) + ": " + cudaGetErrorString(error));
}
void require(pncuda_status status, const char* what) {
  if (status != PNCUDA_OK) fail(std::string(what) + ": " + pncuda_status_text(status));
}

std::string format(const char* text, ...) {
  char made[1024];
  va_list values;
  va_start(values, text);
  std::vsnprintf(made, sizeof made, text, values);
  va_end(values);
  return made;
}

void Report::line(const std::string& what) {
  text += what + "\n";
  std::puts(what.c_str());
  static_cast<void>(std::fflush(stdout));
}
void Report::expect(bool ok, const std::string& what) {
  ++(ok ? passed : failed);
  if (!ok && failed <= 40) line("FAILED: " + what);
}

Machine machine() {
  int count = 0;
  require(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (count == 0) fail("no device");
  cudaDeviceProp properties;
  require(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  Machine m;
  m.name = properties.name;
  m.major = properties.major;
  m.minor = properties.minor;
  m.multiprocessors = properties.multiProcessorCount;
  m.memory = properties.totalGlobalMem;
  int l2 = 0;
  require(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, 0), "size of the L2");
  m.l2 = static_cast<std::size_t>(l2);
#if !defined(PN_HOST_CUDA)
  int clock = 0, width = 0;  // kHz, bits; two transfers in a clock
  if (cudaDeviceGetAttribute(&clock, cudaDevAttrMemoryClockRate, 0) == cudaSuccess &&
      cudaDeviceGetAttribute(&width, cudaDevAttrGlobalMemoryBusWidth, 0) == cudaSuccess)
    m.peak = 2.0 * clock * 1e3 * width / 8;
  cudaGetLastError();
  require(cudaDriverGetVersion(&m.driver), "cudaDriverGetVersion");
  require(cudaRuntimeGetVersion(&m.runtime), "cudaRuntimeGetVersion");
#endif
  return m;
}

Pattern::Pattern(std::size_t blocks) : blocks_(blocks) {
  std::mt19937 random(1);
  for (pn::Block34& block : blocks_) {
    for (std::size_t w = 0; w < pn::words_per_block; ++w) {
      const auto bits = static_cast<std::uint32_t>(random());
      std::memcpy(block.qs + 4 * w, &bits, 4);
    }
    const auto bits = static_cast<std::uint32_t>(random());
    // 2^-10 .. 2^-5 of either sign; a few are zero or subnormal.
    const std::uint32_t scale = (bits & 0x83FFu) | (bits % 61 == 0 ? 0 : 5 + (bits >> 16) % 5) << 10;
    block.d[0] = static_cast<std::uint8_t>(scale & 0xFFu);
    block.d[1] = static_cast<std::uint8_t>(scale >> 8);
  }
}

Bf16Pattern::Bf16Pattern(std::size_t blocks) : blocks_(blocks), weights_(blocks * p12::block_size) {
  constexpr std::size_t blocks_of_scale = 20;
  std::atomic<std::size_t> listing{0};
  in_parallel((blocks + blocks_of_scale - 1) / blocks_of_scale, [&](std::size_t part) {
    std::mt19937 random(static_cast<unsigned>(part) + 1);
    std::normal_distribution<float> normal;
    const float scale = 0.02f * std::exp2(normal(random));
    for (std::size_t b = part * blocks_of_scale; b < std::min(blocks, (part + 1) * blocks_of_scale); ++b) {
      std::uint16_t* const weights = &weights_[b * p12::block_size];
      do
        for (std::size_t i = 0; i < p12::block_size; ++i) weights[i] = pn::float_to_bf16(scale * normal(random));
      while (p12::pack_block(weights, blocks_[b]) != pn::Status::ok);  // which may happen once in a billion blocks
      if (blocks_[b].listed > 0) ++listing;
    }
  });
  listing_ = static_cast<double>(listing) / static_cast<double>(blocks);
}

void Repeated::fill(void* device, std::size_t bytes) const {
  std::size_t done = std::min(period, bytes);
  require(cudaMemcpy(device, data, done, cudaMemcpyHostToDevice), "copy of weights");
  for (; done < bytes; done += std::min(done, bytes - done))
    require(cudaMemcpy(static_cast<std::uint8_t*>(device) + done, device, std::min(done, bytes - done),
                       cudaMemcpyDeviceToDevice),
            "copy of weights");
}

bool Repeated::lies_at(const void* device, std::size_t bytes) const {
  constexpr std::size_t chunk = std::size_t{32} << 20, parts = 64;
  std::vector<std::uint8_t> copy;
  std::atomic<bool> equal{true};
  for (std::size_t at = 0; at < bytes; at += chunk) {
    copy.resize(std::min(chunk, bytes - at));
    require(cudaMemcpy(copy.data(), static_cast<const std::uint8_t*>(device) + at, copy.size(), cudaMemcpyDeviceToHost),
            "copy of weights");
    in_parallel(parts, [&](std::size_t part) {
      const std::size_t end = copy.size() * (part + 1) / parts;
      for (std::size_t i = copy.size() * part / parts; i < end;) {
        const std::size_t place = (at + i) % period, length = std::min(end - i, period - place);
        if (!same_bytes(&copy[i], static_cast<const std::uint8_t*>(data) + place, length)) equal = false;
        i += length;
      }
    });
  }
  return equal;
}

std::string name_of(Shape shape) {
  return format("%lldx%lld", static_cast<long long>(shape.rows), static_cast<long long>(shape.k));
}
const char* name_of_type(int type) {
  return type == PNCUDA_BF16_P12     ? "bf16_p12"
         : type == PNCUDA_BF16_PLAIN ? "bf16"
         : type == PNCUDA_PN3T       ? "pn3t"
                                     : "pn4t";
}
const char* name_of_element(int type) { return type == PNCUDA_F32 ? "f32" : type == PNCUDA_F16 ? "f16" : "bf16"; }
const char* name_of_path(int path) {
  return path == PNCUDA_PATH_FFMA     ? "ffma"
         : path == PNCUDA_PATH_HFMA2  ? "hfma2"
         : path == PNCUDA_PATH_TENSOR ? "tensor"
                                      : "none";
}

pncuda_weights make_weights(int type, int layout, const void* data, Shape shape) {
  pncuda_weights w = {};
  w.struct_size = sizeof w;
  w.type = type;
  w.layout = layout;
  w.data = data;
  w.rows = shape.rows;
  w.k = shape.k;
  w.row_stride = layout == PNCUDA_NATIVE ? shape.k / block_of(type) * block_bytes_of(type) : 0;
  return w;
}

pncuda_gemv_args make_gemv(const pncuda_weights& weights, const void* x, int x_type, std::int64_t tokens, void* y,
                           int y_type, int mode, int hadamard_block) {
  pncuda_gemv_args a = {};
  a.struct_size = sizeof a;
  a.weights = &weights;
  a.x = x;
  a.x_stride = weights.k * static_cast<std::int64_t>(element_bytes(x_type));
  a.x_type = x_type;
  a.y_type = y_type;
  a.y = y;
  a.y_stride = weights.rows * static_cast<std::int64_t>(element_bytes(y_type));
  a.tokens = tokens;
  a.mode = mode;
  a.hadamard_block = hadamard_block;
  return a;
}

int hadamard_block_of(std::int64_t k) {
  for (const int b : {1024, 512, 256, 128, 64})
    if (k % b == 0) return b;
  return 0;
}

std::vector<Shape> shapes(const Options& options, const Machine& machine, int type) {
  std::vector<Shape> all;
  if (options.tiny)
    all = {{37, 320}, {16, 5120}};  // rows and blocks that fill no tile; K in chunks
  else if (options.quick)
    all = {{1024, 5120}, {17408, 5120}, {5120, 17408}};
  else
    all = {{1024, 5120}, {5120, 5120},  {6144, 5120},  {17408, 5120},
           {5120, 6144}, {5120, 17408}, {1000, 17408}, {248320, 5120}};
  std::vector<Shape> fitting;
  for (const Shape s : all)
    // Twice in two layouts, and twice as fp16.
    if (s.k % block_of(type) == 0 && static_cast<std::size_t>(s.rows * s.k) * 8 < machine.memory) fitting.push_back(s);
  return fitting;
}

std::vector<Shape> p12_shapes(const Options& options, const Machine& machine) {
  std::vector<Shape> all;
  if (options.tiny)
    all = {{37, 512}, {18, 5120}};
  else if (options.quick)
    all = {{1024, 5120}, {5120, 6144}, {5120, 17408}};
  else
    all = {{1024, 5120}, {6144, 5120},  {17408, 5120}, {1024, 6144},
           {5120, 6144}, {1024, 17408}, {5120, 17408}, {17408, 17408}};
  std::vector<Shape> fitting;
  for (const Shape s : all)
    // Plain, packed and unpacked for proof.
    if (static_cast<std::size_t>(s.rows * s.k) * 8 < machine.memory) fitting.push_back(s);
  return fitting;
}

std::vector<Shape> p12_timed_shapes(const Options& options) {
  if (options.tiny) return {{37, 512}};
  if (options.quick) return {{17408, 5120}, {5120, 6144}};
  return {{17408, 5120}, {5120, 17408}, {5120, 6144}, {6144, 5120}, {1024, 5120}};
}

std::vector<std::int64_t> some_rows(std::int64_t rows, std::int64_t count) {
  std::set<std::int64_t> chosen;
  for (std::int64_t i = 0; i < std::min(rows, count / 3); ++i) {
    chosen.insert(i);
    chosen.insert(rows - 1 - i);
    chosen.insert(rows * i * 3 / count);
  }
  return {chosen.begin(), chosen.end()};
}

std::vector<float> normal_numbers(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

std::vector<std::uint8_t> to_elements(const std::vector<float>& values, int type) {
  std::vector<std::uint8_t> bytes(values.size() * element_bytes(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (type == PNCUDA_F32) {
      std::memcpy(&bytes[4 * i], &values[i], 4);
    } else {
      const std::uint16_t bits = type == PNCUDA_F16 ? pn::float_to_half(values[i]) : pn::float_to_bf16(values[i]);
      std::memcpy(&bytes[2 * i], &bits, 2);
    }
  }
  return bytes;
}

std::vector<float> from_elements(const std::vector<std::uint8_t>& bytes, int type) {
  std::vector<float> values(bytes.size() / element_bytes(type));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (type == PNCUDA_F32) {
      std::memcpy(&values[i], &bytes[4 * i], 4);
    } else {
      std::uint16_t bits;
      std::memcpy(&bits, &bytes[2 * i], 2);
      values[i] = type == PNCUDA_F16 ? pn::half_to_float(bits) : pn::bf16_to_float(bits);
    }
  }
  return values;
}

void in_parallel(std::size_t count, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads(std::max(1u, std::thread::hardware_concurrency()));
  for (std::thread& thread : threads)
    thread = std::thread([&] {
      for (std::size_t i; (i = next++) < count;) body(i);
    });
  for (std::thread& thread : threads) thread.join();
}

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::string quoted(const std::string& text) {
  std::string made = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') made += '\\';
    made += c < ' ' ? ' ' : c;
  }
  return made + "\"";
}

void write(const std::string& path, const std::string& content) {
  std::FILE* const file = std::fopen(path.c_str(), "w");
  const bool ok = file != nullptr && std::fwrite(content.data(), 1, content.size(), file) == content.size();
  if (file == nullptr || std::fclose(file) != 0 || !ok) {
    std::fprintf(stderr, "gpu_bench: cannot write %s\n", path.c_str());
    std::exit(2);
  }
  std::printf("%s\n", path.c_str());
}

// <date>-<card>.txt and .json
void write_files(const Options& options, const Machine& m, const Report& report) {
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d", std::gmtime(&now));
  std::string card;
  for (const char c : m.name.empty() ? std::string("no-card") : m.name) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (plain)
      card += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    else if (!card.empty() && card.back() != '-')
      card += '-';
  }
  std::string json = "{\"machine\": {\"card\": " + quoted(m.name) +
                     format(
                         ", \"date\": \"%s\", \"compute_capability\": \"%d.%d\", \"multiprocessors\": %d, "
                         "\"memory\": %zu, \"l2\": %zu, \"driver\": %d, \"runtime\": %d, "
                         "\"peak_GB_per_s\": %.1f, \"measured_GB_per_s\": %.1f, \"checks_passed\": %d, "
                         "\"checks_failed\": %d},\n \"figures\": [",
                         date, m.major, m.minor, m.multiprocessors, m.memory, m.l2, m.driver, m.runtime, m.peak / 1e9,
                         m.measured / 1e9, report.passed, report.failed);
  for (std::size_t i = 0; i < report.figures.size(); ++i) json += (i == 0 ? "\n  " : ",\n  ") + report.figures[i];
  const std::string base = options.out + "/" + date + "-" + card;
  write(base + ".txt", report.text);
  write(base + ".json", json + "\n ]}\n");
}

void run(const Options& options, Machine& m, Report& report) {
  const Clock::time_point begin = Clock::now();
  m = machine();
  report.line(format("%s, sm_%d%d, %d multiprocessors, memory %zu MiB, L2 %zu KiB, driver %d, runtime %d",
                     m.name.c_str(), m.major, m.minor, m.multiprocessors, m.memory >> 20, m.l2 >> 10, m.driver,
                     m.runtime));
  require(cudaSetDevice(0), "cudaSetDevice");
  require(pncuda_prepare(0), "pncuda_prepare (bench/gpu.sh --arch compiles for another device)");
  ask_hardware(m, report);
  check_kernels(options, m, report);
  for (const auto& [what, error] : report.worst) {
    report.line(format("largest error, %s: %.2e", what.c_str(), error));
    report.figures.push_back(format("{\"name\": \"largest_error: %s\", \"value\": %s}", what.c_str(),
                                    std::isfinite(error) ? format("%.3e", error).c_str() : "null"));
  }
  report.line(format("%d checks passed, %d failed, after %.1f s", report.passed, report.failed, seconds_since(begin)));
  time_kernels(options, m, begin, report);
  report.line(format("done after %.1f s", seconds_since(begin)));
}

}  // namespace

}  // namespace gpu_bench

int main(int argc, char** argv) {
  using namespace gpu_bench;
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--quick") {
      options.quick = true;
    } else if (argument == "--tiny") {
      options.tiny = true;
    } else if (argument == "--seconds" && i + 1 < argc) {
      options.seconds = std::strtod(argv[++i], nullptr);
    } else if (argument == "--out" && i + 1 < argc) {
      options.out = argv[++i];
#if defined(PN_HOST_CUDA)
    } else if (argument == "--p100") {
      host_cuda::set_device(host_cuda::p100());
#endif
    } else {
      std::fprintf(stderr, "usage: gpu_bench [--quick] [--tiny] [--seconds N] [--out FOLDER]\n");
      return 2;
    }
  }
  Machine machine_here;
  Report report;
  try {
    run(options, machine_here, report);
  } catch (const std::exception& e) {
    ++report.failed;
    report.line(std::string("FAILED: ") + e.what());
  }
  write_files(options, machine_here, report);
  return report.failed == 0 ? 0 : 1;
}
