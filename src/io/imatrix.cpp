#include "imatrix.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "error.hpp"
#include "gguf.hpp"

namespace pn::io {
namespace {

constexpr const char* sums_suffix = ".in_sum2";
constexpr const char* counts_suffix = ".counts";
constexpr std::uint64_t smallest_entry = 4 + 0 + 4 + 4 + 4;  // name length, name, calls, number of values, a value

std::uint32_t u32_at(const std::uint8_t* bytes) {
  std::uint32_t value = 0;
  for (unsigned i = 0; i < 4; ++i) value |= static_cast<std::uint32_t>(bytes[i]) << (8 * i);
  return value;
}

std::int32_t i32_at(const std::uint8_t* bytes) {
  const std::uint32_t bits = u32_at(bytes);
  std::int32_t value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

double f32_at(const std::uint8_t* bytes) {
  const std::uint32_t bits = u32_at(bytes);
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return static_cast<double>(value);
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// A shape of one or two dimensions, K last; further ones may only be 1.
bool is_matrix(const Tensor& tensor) {
  for (std::size_t i = 2; i < tensor.shape.size(); ++i)
    if (tensor.shape[tensor.shape.size() - 1 - i] != 1) return false;
  return true;
}

std::string ne_text(const Tensor& tensor) {
  std::string text = "[";
  for (auto n = tensor.shape.rbegin(); n != tensor.shape.rend(); ++n)
    text += (n == tensor.shape.rbegin() ? "" : ", ") + std::to_string(*n);
  return text + "]";
}

// What is wrong with a number that must be finite and not negative; empty when nothing is.
std::string fault_of(double number) {
  if (std::isnan(number)) return "is not a number";
  if (number < 0) return "is negative";
  if (std::isinf(number)) return "is infinite";
  return "";
}

}  // namespace

Imatrix::Imatrix(const InputFile& file) : file_(file) {
  if (file.size() < 4) throw Error(Fault::input, file.path(), "is too short to be an importance matrix").at(0);
  std::vector<std::uint8_t> scratch;
  older_form_ = std::memcmp(file.read(0, 4, scratch), "GGUF", 4) != 0;
  older_form_ ? read_older_form() : read_gguf_form();

  by_name_.resize(entries_.size());
  std::iota(by_name_.begin(), by_name_.end(), std::size_t{0});
  std::sort(by_name_.begin(), by_name_.end(), [&](std::size_t a, std::size_t b) {
    const int order = entries_[a].name.compare(entries_[b].name);
    return order != 0 ? order < 0 : a < b;
  });
  for (std::size_t i = 1; i < by_name_.size(); ++i) {
    const ImatrixEntry& entry = entries_[by_name_[i]];
    if (entry.name == entries_[by_name_[i - 1]].name) fail(entry.name, "appears twice", entry.values_at);
  }
}

void Imatrix::read_gguf_form() {
  const Gguf gguf = read_gguf(file_);
  const GgufKey* type = gguf.find("general.type");
  if (type == nullptr || !is_string(*type) || string_value(file_, *type) != "imatrix")
    throw Error(Fault::input, file_.path(),
                "is a GGUF file, but not an importance matrix (its general.type is not \"imatrix\")")
        .at(type != nullptr ? type->offset : 0);
  if (gguf.tail_start < file_.size())
    throw Error(Fault::input, file_.path(), "has bytes after its last tensor").at(gguf.tail_start);

  std::unordered_map<std::string, const Tensor*> tensors;
  for (const Tensor& tensor : gguf.tensors) tensors.emplace(tensor.name, &tensor);
  const auto partner = [&](const Tensor& tensor, const std::string& own, const std::string& other) {
    const std::string name = tensor.name.substr(0, tensor.name.size() - own.size());
    const auto found = tensors.find(name + other);
    if (found == tensors.end()) fail(name, "the file has " + tensor.name + " but no " + name + other, tensor.offset);
    return std::make_pair(name, found->second);
  };

  for (const Tensor& tensor : gguf.tensors) {
    if (ends_with(tensor.name, counts_suffix)) partner(tensor, counts_suffix, sums_suffix);
    if (!ends_with(tensor.name, sums_suffix)) continue;
    const auto [name, counts] = partner(tensor, sums_suffix, counts_suffix);
    for (const Tensor* part : {&tensor, counts}) {
      if (part->type.name != "F32") fail(name, part->name + " is " + part->type.name + ", not F32", part->offset);
      if (part->elements == 0) fail(name, part->name + " has no elements", part->offset);
      if (!is_matrix(*part))
        fail(name, part->name + " has the shape " + ne_text(*part) + " instead of two dimensions", part->offset);
    }
    const std::uint64_t matrices = tensor.elements / tensor.row_length();
    if (counts->row_length() != 1 || counts->elements != matrices)
      fail(name,
           counts->name + " has the shape " + ne_text(*counts) + ", but " + tensor.name + " has " + ne_text(tensor) +
               ", which asks for [1, " + std::to_string(matrices) + "]",
           counts->offset);
    entries_.push_back({name, tensor.elements, matrices, tensor.offset, counts->offset});
  }
  if (entries_.empty())
    throw Error(Fault::input, file_.path(), "has no importance of any tensor (no " + std::string(sums_suffix) + ")")
        .at(0);
}

void Imatrix::read_older_form() {
  std::vector<std::uint8_t> scratch;
  std::uint64_t position = 0;
  std::string part;
  const auto i32 = [&](const char* what) {
    if (file_.size() - position < 4)
      throw Error(Fault::input, file_.path(), std::string("the file ends inside ") + what + part).at(file_.size());
    const std::int32_t value = i32_at(file_.read(position, 4, scratch));
    position += 4;
    return value;
  };

  const std::int32_t count = i32("the number of entries");
  if (count <= 0 || static_cast<std::uint64_t>(count) > (file_.size() - 4) / smallest_entry)
    throw Error(Fault::input, file_.path(),
                "is not an importance matrix: neither GGUF nor the older form, in which it would have " +
                    std::to_string(count) + " entries")
        .at(0);
  for (std::int32_t i = 0; i < count; ++i) {
    part = " of entry " + std::to_string(i + 1) + " of " + std::to_string(count);
    const std::uint64_t at = position;
    const std::int32_t length = i32("the name length");
    if (length < 0 || static_cast<std::uint64_t>(length) > file_.size() - position)
      throw Error(Fault::input, file_.path(),
                  "the name" + part + " has " + std::to_string(length) + " bytes, " +
                      (length < 0 ? "a negative number" : "more than are left in the file"))
          .at(at);
    ImatrixEntry entry;
    const auto bytes = static_cast<std::size_t>(length);
    const std::uint8_t* name = file_.read(position, bytes, scratch);
    if (bytes != 0) entry.name.assign(reinterpret_cast<const char*>(name), bytes);
    position += bytes;

    entry.counts = 1;
    entry.counts_at = position;
    const std::int32_t calls = i32("the number of calls");
    if (calls < 0) fail(entry.name, "has " + std::to_string(calls) + " calls", entry.counts_at);
    const std::uint64_t values_at = position;
    const std::int32_t values = i32("the number of values");
    if (values <= 0) fail(entry.name, "has " + std::to_string(values) + " values", values_at);
    entry.values = static_cast<std::uint64_t>(values);
    entry.values_at = position;
    if (entry.values > (file_.size() - position) / 4)
      fail(entry.name, "its " + std::to_string(values) + " values go beyond the end of the file", values_at);
    position += 4 * entry.values;
    entries_.push_back(std::move(entry));
  }

  part.clear();
  if (position == file_.size()) return;
  i32("the number of chunks");
  if (position == file_.size()) return;
  const std::uint64_t at = position;
  const std::int32_t length = i32("the length of the data set's name");
  if (length < 0 || static_cast<std::uint64_t>(length) > file_.size() - position)
    throw Error(Fault::input, file_.path(),
                "the data set's name has " + std::to_string(length) + " bytes, " +
                    (length < 0 ? "a negative number" : "more than are left in the file"))
        .at(at);
  position += static_cast<std::uint64_t>(length);
  if (position != file_.size())
    throw Error(Fault::input, file_.path(),
                "has " + std::to_string(file_.size() - position) + " bytes after the data set's name")
        .at(position);
}

const ImatrixEntry* Imatrix::find(const std::string& name) const {
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [&](std::size_t i, const std::string& n) { return entries_[i].name < n; });
  return found == by_name_.end() || entries_[*found].name != name ? nullptr : &entries_[*found];
}

void Imatrix::require_shape(const ImatrixEntry& entry, std::uint64_t k, std::uint64_t matrices) const {
  const auto number = [](std::uint64_t n) { return std::to_string(n); };
  const std::string tensor_has = ", but the tensor has " +
                                 (matrices == 1 ? std::string() : number(matrices) + " matrices of ") + number(k) +
                                 " columns";
  if (k == 0 || matrices == 0 || entry.values % matrices != 0 || entry.values / matrices != k)
    fail(entry.name, "the importance matrix has " + number(entry.values) + " values" + tensor_has, entry.values_at);
  if (entry.counts != 1 && entry.counts != matrices)
    fail(entry.name, "the importance matrix has " + number(entry.counts) + " counts" + tensor_has, entry.counts_at);
}

std::vector<double> Imatrix::read(const ImatrixEntry& entry, std::uint64_t matrix, std::uint64_t k,
                                  std::uint64_t matrices) const {
  require_shape(entry, k, matrices);
  if (matrix >= matrices) throw std::out_of_range("Imatrix::read: no such matrix");
  const std::string place = matrices == 1 ? "" : "expert " + std::to_string(matrix) + ", ";
  std::vector<double> importance(static_cast<std::size_t>(k));
  const double count = read_count(entry, entry.counts == 1 ? 0 : matrix, place);
  if (count == 0) return importance;

  std::vector<std::uint8_t> scratch;
  const std::uint64_t offset = entry.values_at + 4 * k * matrix;
  const std::uint8_t* values = file_.read(offset, 4 * importance.size(), scratch);
  for (std::size_t column = 0; column < importance.size(); ++column) {
    const double g = f32_at(values + 4 * column) / count;
    if (const std::string fault = fault_of(g); !fault.empty())
      fail(entry.name, "the importance of " + place + "column " + std::to_string(column) + " " + fault,
           offset + 4 * column);
    importance[column] = g + 0.0;  // no -0.0
  }
  file_.release(offset, 4 * importance.size());
  return importance;
}

double Imatrix::read_count(const ImatrixEntry& entry, std::uint64_t index, const std::string& place) const {
  std::vector<std::uint8_t> scratch;
  const std::uint64_t offset = entry.counts_at + 4 * index;
  const std::uint8_t* bytes = file_.read(offset, 4, scratch);
  if (older_form_) return static_cast<double>(i32_at(bytes));
  const double count = f32_at(bytes);
  if (const std::string fault = fault_of(count); !fault.empty())
    fail(entry.name, place + "the count of activations " + fault, offset);
  return count;
}

void Imatrix::fail(const std::string& name, const std::string& message, std::uint64_t offset) const {
  throw Error(Fault::input, file_.path(), message).about("tensor " + name).at(offset);
}

}  // namespace pn::io
