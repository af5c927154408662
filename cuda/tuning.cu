// libpncuda_blas: what pncuda_matmul_tune measures, and its text. Uses the C ABI of libpncuda only.
#include <algorithm>
#include <iterator>
#include <string_view>

#include "blas.hpp"

namespace pncuda_blas {

namespace {

struct Name {
  int type;
  std::string_view text;
};
constexpr Name weights_names[] = {
    {PNCUDA_PN3T, "pn3t"}, {PNCUDA_PN4T, "pn4t"}, {PNCUDA_BF16_P12, "bf16_p12"}, {PNCUDA_BF16_PLAIN, "bf16_plain"}};
constexpr Name element_names[] = {{PNCUDA_F32, "f32"}, {PNCUDA_F16, "f16"}, {PNCUDA_BF16, "bf16"}};

template <std::size_t count>
const Name* name_of(const Name (&names)[count], int type) {
  for (const Name& name : names)
    if (name.type == type) return &name;
  return nullptr;
}
template <std::size_t count>
bool type_of(const Name (&names)[count], std::string_view text, std::int32_t& type) {
  for (const Name& name : names)
    if (name.text == text) {
      type = name.type;
      return true;
    }
  return false;
}

bool is_printable(char c) { return c >= ' ' && c <= '~'; }

pncuda_status check_entry(const pncuda_tuning_entry& entry) {
  if (name_of(weights_names, entry.type) == nullptr || name_of(element_names, entry.x_type) == nullptr)
    return PNCUDA_BAD_ENUM;
  const bool is_one = entry.n >= 1 && entry.k >= 1 && entry.switch_tokens >= 1 && entry.slice_rows >= 0;
  return is_one && is_slice(entry.slice_rows, entry.n) ? PNCUDA_OK : PNCUDA_OUT_OF_RANGE;
}

// The table itself and its device's name; not the entries.
pncuda_status check_table(const pncuda_tuning* tuning) {
  if (tuning == nullptr) return PNCUDA_NULL_POINTER;
  if (tuning->struct_size != sizeof(pncuda_tuning)) return PNCUDA_STRUCT_SIZE;
  if (tuning->entries == nullptr && tuning->room > 0) return PNCUDA_NULL_POINTER;
  if (tuning->count > tuning->room) return PNCUDA_OUT_OF_RANGE;
  if (tuning->reserved != 0) return PNCUDA_BAD_ENUM;
  for (const char c : tuning->device) {
    if (c == 0) return PNCUDA_OK;
    if (!is_printable(c)) return PNCUDA_BAD_TUNING;
  }
  return PNCUDA_BAD_TUNING;  // the name has no end
}

bool has_key(const pncuda_tuning_entry& e, int type, int x_type, std::int64_t n, std::int64_t k) {
  return e.type == type && e.x_type == x_type && e.n == n && e.k == k;
}

pncuda_tuning_entry* find(const pncuda_tuning& tuning, int type, int x_type, std::int64_t n, std::int64_t k) {
  pncuda_tuning_entry* const end = tuning.entries + tuning.count;
  pncuda_tuning_entry* const found = std::find_if(
      tuning.entries, end, [&](const pncuda_tuning_entry& entry) { return has_key(entry, type, x_type, n, k); });
  return found == end ? nullptr : found;
}

// Whose numbers a table has.
pncuda_status describe_device(pncuda_tuning& tuning) {
  int device = 0;
  PNCUDA_CHECK(status_of(cudaGetDevice(&device)));
  cudaDeviceProp properties = {};
  PNCUDA_CHECK(status_of(cudaGetDeviceProperties(&properties, device)));
  tuning.version = pncuda_version();
  tuning.major = properties.major;
  tuning.minor = properties.minor;
  std::size_t length = 0;
  for (const char c : properties.name) {
    if (c == 0 || length + 1 == sizeof(tuning.device)) break;
    tuning.device[length++] = is_printable(c) ? c : '?';
  }
  std::fill(tuning.device + length, std::end(tuning.device), '\0');
  return PNCUDA_OK;
}

// Text that is counted, and written as far as there is room.
class Writer {
 public:
  Writer(char* text, std::size_t room) : text_(text), room_(room) {}
  Writer& operator<<(std::string_view part) {
    for (const char c : part) {
      if (size_ < room_) text_[size_] = c;
      ++size_;
    }
    return *this;
  }
  Writer& operator<<(std::int64_t number) {  // not negative
    char digits[20];
    std::size_t first = sizeof(digits);
    do digits[--first] = static_cast<char>('0' + number % 10);
    while ((number /= 10) != 0);
    return *this << std::string_view(digits + first, sizeof(digits) - first);
  }
  std::size_t size() const { return size_; }

 private:
  char* text_;
  std::size_t room_, size_ = 0;
};

constexpr std::string_view title = "pncuda tuning 1";

void write(const pncuda_tuning& tuning, Writer& out) {
  out << title << "\nversion " << tuning.version << "\ncapability " << tuning.major << "." << tuning.minor
      << "\ndevice " << std::string_view(tuning.device) << "\n";
  for (std::size_t i = 0; i < tuning.count; ++i) {
    const pncuda_tuning_entry& e = tuning.entries[i];
    out << name_of(weights_names, e.type)->text << " " << name_of(element_names, e.x_type)->text << " " << e.n << " "
        << e.k << " " << e.switch_tokens << " " << e.slice_rows << "\n";
  }
  out << "end " << static_cast<std::int64_t>(tuning.count) << "\n";
}

// What Writer writes, read back; each function is false, and the rest of no use, when something else is there.
class Reader {
 public:
  explicit Reader(std::string_view text) : left_(text) {}
  bool empty() const { return left_.empty(); }
  bool literal(std::string_view text) {
    if (left_.substr(0, text.size()) != text) return false;
    left_.remove_prefix(text.size());
    return true;
  }
  // What comes before `end`, which is on the same line and is left out.
  bool until(char end, std::string_view& part) {
    const std::size_t length = left_.find(end);
    if (length == std::string_view::npos) return false;
    part = left_.substr(0, length);
    left_.remove_prefix(length + 1);
    return std::all_of(part.begin(), part.end(), is_printable);
  }
  // A number as Writer writes it, and `end`.
  bool number(char end, std::int64_t& value) {
    std::string_view digits;
    if (!until(end, digits) || digits.empty() || (digits.size() > 1 && digits[0] == '0')) return false;
    value = 0;
    for (const char c : digits) {
      if (c < '0' || c > '9' || value > (INT64_MAX - (c - '0')) / 10) return false;
      value = value * 10 + (c - '0');
    }
    return true;
  }

 private:
  std::string_view left_;
};

pncuda_status read_head(Reader& in, const pncuda_tuning& tuning) {
  std::int64_t version = 0, major = 0, minor = 0;
  std::string_view device;
  if (!in.literal(title) || !in.literal("\nversion ") || !in.number('\n', version)) return PNCUDA_BAD_TUNING;
  if (version != tuning.version) return PNCUDA_FOREIGN_TUNING;  // who knows what comes then
  if (!in.literal("capability ") || !in.number('.', major) || !in.number('\n', minor) || !in.literal("device ") ||
      !in.until('\n', device))
    return PNCUDA_BAD_TUNING;
  return major == tuning.major && minor == tuning.minor && device == std::string_view(tuning.device)
             ? PNCUDA_OK
             : PNCUDA_FOREIGN_TUNING;
}

// The rest, into an empty table.
pncuda_status read_entries(Reader& in, pncuda_tuning& tuning) {
  while (!in.literal("end ")) {
    pncuda_tuning_entry e = {};
    std::string_view type, x_type;
    if (!in.until(' ', type) || !in.until(' ', x_type) || !type_of(weights_names, type, e.type) ||
        !type_of(element_names, x_type, e.x_type) || !in.number(' ', e.n) || !in.number(' ', e.k) ||
        !in.number(' ', e.switch_tokens) || !in.number('\n', e.slice_rows) || check_entry(e) != PNCUDA_OK ||
        find(tuning, e.type, e.x_type, e.n, e.k) != nullptr)
      return PNCUDA_BAD_TUNING;
    if (tuning.count == tuning.room) return PNCUDA_WORKSPACE_TOO_SMALL;
    tuning.entries[tuning.count++] = e;
  }
  std::int64_t count = 0;
  return in.number('\n', count) && static_cast<std::size_t>(count) == tuning.count && in.empty() ? PNCUDA_OK
                                                                                                 : PNCUDA_BAD_TUNING;
}

constexpr int runs = 5;  // the median of them

// Times multiplies on a stream, each after memory that is not in the cache has been.
class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {}
  ~Stopwatch() {
    cudaStreamSynchronize(stream_);
    for (const cudaEvent_t event : events_)
      if (event != nullptr) cudaEventDestroy(event);
    cudaFree(flushed_);
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

  pncuda_status prepare() {
    int device = 0, l2 = 0;
    PNCUDA_CHECK(status_of(cudaGetDevice(&device)));
    PNCUDA_CHECK(status_of(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, device)));
    bytes_ = static_cast<std::size_t>(std::max(l2, 1)) * 4;  // long enough for launches to run ahead of the device
    for (cudaEvent_t& event : events_) PNCUDA_CHECK(status_of(cudaEventCreateWithFlags(&event, cudaEventDefault)));
    return status_of(cudaMalloc(&flushed_, bytes_));
  }
  template <class Body>
  pncuda_status time(Body&& body, float& milliseconds) {
    PNCUDA_CHECK(body());  // cuBLAS loads what it needs
    float times[runs] = {};
    for (float& one : times) {
      PNCUDA_CHECK(status_of(cudaMemsetAsync(flushed_, 0, bytes_, stream_)));
      PNCUDA_CHECK(status_of(cudaEventRecord(events_[0], stream_)));
      PNCUDA_CHECK(body());
      PNCUDA_CHECK(status_of(cudaEventRecord(events_[1], stream_)));
      PNCUDA_CHECK(status_of(cudaEventSynchronize(events_[1])));
      PNCUDA_CHECK(status_of(cudaEventElapsedTime(&one, events_[0], events_[1])));
    }
    std::sort(std::begin(times), std::end(times));
    milliseconds = times[runs / 2];
    return PNCUDA_OK;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t events_[2] = {};
  void* flushed_ = nullptr;
  std::size_t bytes_ = 0;
};

// Token counts and what they cost, on one stream.
class Tuner {
 public:
  Tuner(const pncuda_matmul_args& args, pncuda_blas_handle handle, cudaStream_t stream)
      : a_(args), handle_(handle), stream_(stream), watch_(stream) {}
  pncuda_status prepare() { return watch_.prepare(); }

  // Of some sizes of slices the one that took the least time through cuBLAS over the largest counts; it is used from
  // then on.
  pncuda_status find_slice(const std::int64_t* counts, std::size_t count, std::int64_t& slice_rows) {
    std::int64_t sizes[most_sizes] = {};
    const std::size_t found = sizes_of_slices(counts[count - 1], sizes);
    slice_rows = sizes[0];
    float least = 0;
    for (std::size_t i = 0; i < found && found > 1; ++i) {
      a_.slice_rows = sizes[i];
      float all = 0;
      for (std::size_t j = count - std::min(count, largest_counts); j < count; ++j) {
        float one = 0;
        PNCUDA_CHECK(time(counts[j], 1, one));
        all += one;
      }
      if (i == 0 || all < least) {
        least = all;
        slice_rows = sizes[i];
      }
    }
    a_.slice_rows = slice_rows;
    return PNCUDA_OK;
  }

  // The first of the counts from which on cuBLAS was not slower, or INT64_MAX.
  pncuda_status find_switch(const std::int64_t* counts, std::size_t count, std::int64_t& switch_tokens) {
    switch_tokens = INT64_MAX;
    for (std::size_t i = 0; i < count; ++i) {
      float by_gemv = 0, by_blas = 0;
      PNCUDA_CHECK(time(counts[i], INT64_MAX, by_gemv));
      PNCUDA_CHECK(time(counts[i], 1, by_blas));
      if (by_blas > by_gemv)
        switch_tokens = INT64_MAX;
      else
        switch_tokens = std::min(switch_tokens, counts[i]);
    }
    return PNCUDA_OK;
  }

 private:
  static constexpr std::size_t most_sizes = 4, largest_counts = 2;

  pncuda_status time(std::int64_t tokens, std::int64_t switch_tokens, float& milliseconds) {
    a_.tokens = tokens;
    a_.switch_tokens = switch_tokens;
    return watch_.time([&] { return pncuda_matmul(&a_, handle_, stream_); }, milliseconds);
  }

  // The plan of so many tokens through cuBLAS; the arguments have been checked.
  pncuda_matmul_plan plan(std::int64_t tokens, std::int64_t slice_rows) const {
    pncuda_matmul_args a = a_;
    a.tokens = tokens;
    a.switch_tokens = 1;
    a.slice_rows = slice_rows;
    pncuda_matmul_plan plan = {};
    plan.struct_size = sizeof(plan);
    pncuda_matmul_query(&a, &plan);
    return plan;
  }

  // The sizes to measure, each once and the first in any case; how many there are.
  std::size_t sizes_of_slices(std::int64_t tokens, std::int64_t (&sizes)[most_sizes]) const {
    const std::int64_t rows = a_.weights->rows, usual = plan(tokens, a_.slice_rows).slice_rows;
    std::size_t count = 0;
    sizes[count++] = usual;
    if (a_.slice_rows != 0) return count;
    for (std::int64_t size : {usual * 2, usual * 4, rows}) {
      size = std::min(size, rows);
      if (size == sizes[count - 1] || plan(tokens, size).workspace_size_best > a_.workspace_size) continue;
      sizes[count++] = size;
    }
    return count;
  }

  pncuda_matmul_args a_;
  pncuda_blas_handle handle_;
  cudaStream_t stream_;
  Stopwatch watch_;
};

// The first counts that need one more pass of a GEMV, of 8 tokens and of 32.
constexpr std::int64_t counts_of_short_passes[] = {17, 33, 49, 65, 97, 129, 161, 193, 225, 257};
constexpr std::int64_t counts_of_long_passes[] = {33, 65, 97, 129, 161, 193, 225, 257};

pncuda_status usual_counts(const pncuda_matmul_args& a, const std::int64_t*& counts, std::size_t& count) {
  const pncuda_gemv_args g = gemv_args(a, 0, std::min(a.tokens, gemv_tokens(a.weights->type)));
  pncuda_gemv_plan plan = {};
  plan.struct_size = sizeof(plan);
  PNCUDA_CHECK(pncuda_gemv_query(&g, &plan));
  const bool is_long = plan.tokens_per_launch > 16;
  counts = is_long ? counts_of_long_passes : counts_of_short_passes;
  const std::int64_t* const end = is_long ? std::end(counts_of_long_passes) : std::end(counts_of_short_passes);
  count = static_cast<std::size_t>(std::upper_bound(counts, end, a.tokens) - counts);
  return PNCUDA_OK;
}

bool are_counts(const std::int64_t* counts, std::size_t count, std::int64_t most) {
  for (std::size_t i = 0; i < count; ++i)
    if (counts[i] < (i == 0 ? 1 : counts[i - 1] + 1) || counts[i] > most) return false;
  return count > 0;
}

// All of it can run, before any of it does.
pncuda_status check_runs(const pncuda_matmul_args& args, std::int64_t fewest, std::int64_t most,
                         pncuda_blas_handle handle, cudaStream_t stream) {
  pncuda_matmul_args a = args;
  a.switch_tokens = 1;
  for (const std::int64_t tokens : {fewest, most}) {
    a.tokens = tokens;
    PNCUDA_CHECK(check_matmul(&a, handle));
  }
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  PNCUDA_CHECK(status_of(cudaStreamIsCapturing(stream, &capture)));
  return capture == cudaStreamCaptureStatusNone ? PNCUDA_OK : status_of(cudaErrorStreamCaptureUnsupported);
}

pncuda_status check_same_device(const pncuda_tuning& tuning) {
  pncuda_tuning here = {};
  PNCUDA_CHECK(describe_device(here));
  const bool same = here.version == tuning.version && here.major == tuning.major && here.minor == tuning.minor &&
                    std::string_view(here.device) == std::string_view(tuning.device);
  return same ? PNCUDA_OK : PNCUDA_FOREIGN_TUNING;
}

}  // namespace

}  // namespace pncuda_blas

using namespace pncuda_blas;

pncuda_status pncuda_tuning_init(pncuda_tuning* tuning, pncuda_tuning_entry* entries, size_t room) {
  if (tuning == nullptr || (entries == nullptr && room > 0)) return PNCUDA_NULL_POINTER;
  if (tuning->struct_size != sizeof(pncuda_tuning)) return PNCUDA_STRUCT_SIZE;
  pncuda_tuning table = {};
  table.struct_size = sizeof(table);
  table.entries = entries;
  table.room = room;
  PNCUDA_CHECK(describe_device(table));
  *tuning = table;
  return PNCUDA_OK;
}

pncuda_status pncuda_tuning_find(const pncuda_tuning* tuning, int32_t type, int32_t x_type, int64_t n, int64_t k,
                                 int64_t* switch_tokens, int64_t* slice_rows) {
  if (switch_tokens == nullptr || slice_rows == nullptr) return PNCUDA_NULL_POINTER;
  *switch_tokens = *slice_rows = 0;
  PNCUDA_CHECK(check_table(tuning));
  const pncuda_tuning_entry* const entry = find(*tuning, type, x_type, n, k);
  if (entry == nullptr) return PNCUDA_OK;
  PNCUDA_CHECK(check_entry(*entry));
  *switch_tokens = entry->switch_tokens;
  *slice_rows = entry->slice_rows;
  return PNCUDA_OK;
}

pncuda_status pncuda_matmul_tune(const pncuda_matmul_args* args, const int64_t* token_counts, size_t count,
                                 pncuda_blas_handle handle, pncuda_stream stream, pncuda_tuning* tuning) {
  PNCUDA_CHECK(check_table(tuning));
  pncuda_matmul_plan plan = {};
  plan.struct_size = sizeof(plan);
  PNCUDA_CHECK(pncuda_matmul_query(args, &plan));
  if (args->proof != 0) return PNCUDA_UNSUPPORTED;
  const std::int64_t rows = args->weights->rows, k = args->weights->k;
  if (rows == 0 || k == 0) return PNCUDA_OUT_OF_RANGE;
  if (token_counts == nullptr) PNCUDA_CHECK(usual_counts(*args, token_counts, count));
  if (!are_counts(token_counts, count, args->tokens)) return PNCUDA_OUT_OF_RANGE;
  PNCUDA_CHECK(check_same_device(*tuning));
  pncuda_tuning_entry* entry = find(*tuning, args->weights->type, args->x_type, rows, k);
  if (entry == nullptr && tuning->count == tuning->room) return PNCUDA_WORKSPACE_TOO_SMALL;
  PNCUDA_CHECK(check_runs(*args, token_counts[0], token_counts[count - 1], handle, stream));

  Tuner tuner(*args, handle, stream);
  PNCUDA_CHECK(tuner.prepare());
  std::int64_t slice_rows = 0, switch_tokens = 0;
  PNCUDA_CHECK(tuner.find_slice(token_counts, count, slice_rows));
  PNCUDA_CHECK(tuner.find_switch(token_counts, count, switch_tokens));
  if (entry == nullptr) entry = &tuning->entries[tuning->count++];
  *entry = {args->weights->type, args->x_type, rows, k, switch_tokens, slice_rows};
  return PNCUDA_OK;
}

pncuda_status pncuda_tuning_to_text(const pncuda_tuning* tuning, char* text, size_t* size) {
  PNCUDA_CHECK(check_table(tuning));
  if (size == nullptr) return PNCUDA_NULL_POINTER;
  if (tuning->version < 0 || tuning->major < 0 || tuning->minor < 0) return PNCUDA_OUT_OF_RANGE;
  for (std::size_t i = 0; i < tuning->count; ++i) {
    PNCUDA_CHECK(check_entry(tuning->entries[i]));
    const pncuda_tuning_entry& e = tuning->entries[i];
    if (find(*tuning, e.type, e.x_type, e.n, e.k) != &e) return PNCUDA_BAD_TUNING;  // twice
  }
  Writer length(nullptr, 0);
  write(*tuning, length);
  const std::size_t room = *size;
  *size = length.size();
  if (text == nullptr) return PNCUDA_OK;
  if (room < length.size()) return PNCUDA_WORKSPACE_TOO_SMALL;
  Writer out(text, room);
  write(*tuning, out);
  return PNCUDA_OK;
}

pncuda_status pncuda_tuning_from_text(const char* text, size_t size, pncuda_tuning* tuning) {
  PNCUDA_CHECK(check_table(tuning));
  if (text == nullptr && size > 0) return PNCUDA_NULL_POINTER;
  Reader in(size > 0 ? std::string_view(text, size) : std::string_view());
  tuning->count = 0;
  pncuda_status status = read_head(in, *tuning);
  if (status == PNCUDA_OK) status = read_entries(in, *tuning);
  if (status != PNCUDA_OK) tuning->count = 0;
  return status;
}
