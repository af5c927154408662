// Importance matrices in both forms, against numbers taken from the file's bytes.
//
// Input: a first byte below 0x80 begins a file that is used as it is; from 0x80 on it is followed by a plan from which
// a sound file is made, and then perhaps damaged.
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fuzz.hpp"
#include "gguf_builder.hpp"
#include "io/error.hpp"
#include "io/imatrix.hpp"
#include "io/input_file.hpp"
#include "scratch_file.hpp"

namespace {

namespace io = pn::io;
using fuzz::Text;
using io::Imatrix;
using io::ImatrixEntry;

const fuzz::ScratchFile& scratch_file() {
  static const fuzz::ScratchFile file;
  return file;
}

// ---- Making files

struct Expected {
  std::uint64_t k = 0;
  std::uint64_t matrices = 0;
  std::vector<float> values;
  std::vector<double> counts;  // one per matrix, or one for all
};

struct Made {
  Text bytes;
  std::map<std::string, Expected> expected;
};

float any_number(fuzz::Bytes& plan) {
  const std::uint32_t kind = plan.byte();
  if (kind < 240) return static_cast<float>(kind) / 8;
  float number = 0;
  plan.copy(&number, sizeof number);
  return number;
}

Made make(fuzz::Bytes& plan) {
  Made made;
  const bool older = plan.one_in(2);
  const std::uint32_t count = 1 + plan.below(4);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::string name = plan.one_in(8) ? fuzz::any_text(plan, 30) : "blk." + std::to_string(i) + ".weight";
    Expected entry;
    entry.k = 1 + plan.below(9);
    entry.matrices = plan.one_in(2) ? 1 + plan.below(4) : 1;
    for (std::uint64_t v = 0; v < entry.k * entry.matrices; ++v) entry.values.push_back(any_number(plan));
    const std::uint64_t counts = older || plan.one_in(4) ? 1 : entry.matrices;
    for (std::uint64_t c = 0; c < counts; ++c)
      entry.counts.push_back(older ? plan.integer<std::uint32_t>() >> 1 : static_cast<double>(any_number(plan)));
    made.expected.emplace(name, entry);  // a name that is there already adds nothing
  }

  if (older) {
    fuzz::put<std::uint32_t>(made.bytes, static_cast<std::uint32_t>(made.expected.size()));
    for (const auto& [name, entry] : made.expected) {
      fuzz::put<std::uint32_t>(made.bytes, static_cast<std::uint32_t>(name.size()));
      made.bytes.insert(made.bytes.end(), name.begin(), name.end());
      fuzz::put<std::uint32_t>(made.bytes, static_cast<std::uint32_t>(entry.counts[0]));
      fuzz::put<std::uint32_t>(made.bytes, static_cast<std::uint32_t>(entry.values.size()));
      fuzz::append(made.bytes, entry.values);
    }
    const std::uint32_t tail = plan.below(3);
    if (tail >= 1) fuzz::put<std::uint32_t>(made.bytes, plan.integer<std::uint32_t>());
    if (tail == 2) {
      const std::string dataset = fuzz::any_text(plan, 20);
      fuzz::put<std::uint32_t>(made.bytes, static_cast<std::uint32_t>(dataset.size()));
      made.bytes.insert(made.bytes.end(), dataset.begin(), dataset.end());
    }
    return made;
  }

  fuzz::BuiltFile file;
  if (plan.one_in(2)) file.keys.push_back(fuzz::key_u32("imatrix.chunk_count", 7));
  file.keys.push_back(fuzz::key_string("general.type", "imatrix"));
  for (const auto& [name, entry] : made.expected) {
    fuzz::BuiltTensor sums;
    sums.name = name + ".in_sum2";
    sums.type = 0;
    const std::uint64_t matrices = entry.counts.size();
    sums.dimensions = {entry.values.size() / matrices, matrices};
    if (matrices == 1 && plan.one_in(2)) sums.dimensions.pop_back();
    fuzz::append(sums.data, entry.values);
    fuzz::BuiltTensor counts;
    counts.name = name + ".counts";
    counts.type = 0;
    counts.dimensions = {1, matrices};
    std::vector<float> numbers;
    for (const double number : entry.counts) numbers.push_back(static_cast<float>(number));
    fuzz::append(counts.data, numbers);
    const bool swapped = plan.one_in(3);
    file.tensors.push_back(swapped ? counts : sums);
    file.tensors.push_back(swapped ? sums : counts);
    if (plan.one_in(3)) {
      sums.name = name + ".in_sum";
      file.tensors.push_back(sums);
    }
  }
  file.reversed = plan.one_in(4);
  file.padded = !plan.one_in(4);
  made.bytes = file.bytes();
  return made;
}

// ---- Reading them

std::uint64_t u32(const Text& bytes, std::uint64_t offset) {
  FUZZ_REQUIRE(offset + 4 <= bytes.size());
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= std::uint64_t{bytes[static_cast<std::size_t>(offset) + i]} << (8 * i);
  return value;
}

double f32(const Text& bytes, std::uint64_t offset) {
  const auto bits = static_cast<std::uint32_t>(u32(bytes, offset));
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return static_cast<double>(value);
}

bool is_weight(double number) { return number >= 0 && number <= std::numeric_limits<double>::max(); }

void require_error(const io::Error& error, std::size_t file_size) {
  FUZZ_REQUIRE(error.fault() == io::Fault::input && error.file() == scratch_file().path());
  FUZZ_REQUIRE(error.what()[0] != '\0');
  // The GGUF reader may name the aligned beginning of the data where the file ends before it.
  FUZZ_REQUIRE(!error.offset() || *error.offset() <= file_size + 65536);
}

// The columns of one matrix out of the bytes, against what read() gives.
void require_numbers(const Imatrix& imatrix, const ImatrixEntry& entry, const Text& bytes, bool older,
                     std::uint64_t matrix, std::uint64_t k, std::uint64_t matrices) {
  const std::uint64_t count_at = entry.counts_at + 4 * (entry.counts == 1 ? 0 : matrix);
  const double count = older ? static_cast<double>(u32(bytes, count_at)) : f32(bytes, count_at);
  bool good = is_weight(count);
  std::optional<std::uint64_t> first_bad;
  std::vector<double> expected;
  for (std::uint64_t c = 0; c < k; ++c) {
    const std::uint64_t offset = entry.values_at + 4 * (matrix * k + c);
    const double value = f32(bytes, offset);
    expected.push_back(count == 0 ? 0 : value / count);
    if (good && !is_weight(expected.back()) && !first_bad) first_bad = offset;
  }
  if (!good) first_bad = count_at;
  try {
    const std::vector<double> read = imatrix.read(entry, matrix, k, matrices);
    FUZZ_REQUIRE(!first_bad && read == expected);
    for (const double g : read) FUZZ_REQUIRE(!std::signbit(g));
  } catch (const io::Error& error) {
    require_error(error, bytes.size());
    FUZZ_REQUIRE(first_bad && error.offset() == first_bad && error.subject() == "tensor " + entry.name);
  }
}

// Returns whether the file was accepted.
bool use(const Text& bytes, io::InputFile::Access access, std::string& result,
         const std::map<std::string, Expected>* made) {
  const io::InputFile file(scratch_file().path(), access);
  try {
    const Imatrix imatrix(file);
    const bool older = bytes[0] != 'G' || bytes[1] != 'G' || bytes[2] != 'U' || bytes[3] != 'F';
    FUZZ_REQUIRE(!imatrix.entries().empty() && imatrix.find("no such tensor, really") == nullptr);
    for (const ImatrixEntry& entry : imatrix.entries()) {
      result += entry.name + " " + std::to_string(entry.values) + " " + std::to_string(entry.counts) + "\n";
      FUZZ_REQUIRE(imatrix.find(entry.name) == &entry);
      FUZZ_REQUIRE(entry.counts >= 1 && entry.values >= entry.counts && entry.values % entry.counts == 0);
      FUZZ_REQUIRE(entry.values_at <= bytes.size() && entry.values <= (bytes.size() - entry.values_at) / 4);
      FUZZ_REQUIRE(!older || entry.counts == 1);
      const std::uint64_t matrices = entry.counts;
      for (std::uint64_t m = 0; m < std::min<std::uint64_t>(matrices, 20); ++m)
        require_numbers(imatrix, entry, bytes, older, m, entry.values / matrices, matrices);
      if (entry.counts == 1) require_numbers(imatrix, entry, bytes, older, entry.values - 1, 1, entry.values);
      for (const std::uint64_t k : {std::uint64_t{0}, entry.values + 1, entry.values + (std::uint64_t{1} << 62)}) {
        try {
          imatrix.require_shape(entry, k, 1);
          FUZZ_REQUIRE(false);
        } catch (const io::Error& error) {
          require_error(error, bytes.size());
        }
      }
      if (made == nullptr) continue;
      const auto expected = made->find(entry.name);
      FUZZ_REQUIRE(expected != made->end() && expected->second.counts.size() == entry.counts);
      imatrix.require_shape(entry, expected->second.k, expected->second.matrices);
      for (std::size_t v = 0; v < expected->second.values.size(); ++v) {
        const double value = f32(bytes, entry.values_at + 4 * v);
        FUZZ_REQUIRE(std::memcmp(&bytes[static_cast<std::size_t>(entry.values_at) + 4 * v], &expected->second.values[v],
                                 4) == 0 ||
                     std::isnan(value));
      }
      for (std::uint64_t m = 0; m < expected->second.matrices; ++m)
        require_numbers(imatrix, entry, bytes, older, m, expected->second.k, expected->second.matrices);
    }
    FUZZ_REQUIRE(made == nullptr || made->size() == imatrix.entries().size());
    return true;
  } catch (const io::Error& error) {
    require_error(error, bytes.size());
    result += error.what();
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Made made;
  bool sound = false;
  if (size != 0 && data[0] >= 0x80) {
    fuzz::Bytes plan(data + 1, size - 1);
    const std::uint32_t damage = plan.below(4);
    made = make(plan);
    sound = damage != 1;
    if (damage == 1) {
      made.bytes.resize(made.bytes.size() - plan.integer<std::uint16_t>() % made.bytes.size());
      for (std::uint32_t i = plan.below(4); i > 0 && !made.bytes.empty(); --i)
        made.bytes[plan.integer<std::uint16_t>() % made.bytes.size()] = plan.byte();
      for (std::uint32_t i = plan.below(3); i > 0; --i) made.bytes.push_back(plan.byte());
    }
  } else {
    if (size != 0) made.bytes.assign(data, data + size);
  }
  scratch_file().write(made.bytes.data(), made.bytes.size());

  std::string mapped;
  std::string plain;
  const bool accepted = use(made.bytes, io::InputFile::Access::automatic, mapped, sound ? &made.expected : nullptr);
  FUZZ_REQUIRE(use(made.bytes, io::InputFile::Access::plain_read, plain, nullptr) == accepted && mapped == plain);
  FUZZ_REQUIRE(!sound || accepted);
  return 0;
}
