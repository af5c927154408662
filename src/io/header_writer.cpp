#include "header_writer.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "error.hpp"
#include "json_reader.hpp"

namespace pn::io {
namespace {

[[noreturn]] void fail(const ModelFile& file, const std::string& subject, const std::string& message) {
  throw Error(Fault::input, file.path(), message).about(subject);
}

// A packed tensor whose file would not say that it is packed is lost.
void require_recorded(const ModelFile& file, const std::vector<Tensor>& tensors, bool has_p12, bool has_pn) {
  for (const Tensor& tensor : tensors)
    if ((types::is_p12(tensor.type) && !has_p12) || (types::is_pn(tensor.type) && !has_pn))
      fail(file, "tensor " + tensor.name,
           "is " + tensor.type.name + ", but no key says so: another kind of file would not show it");
}

class GgufWriter final : public HeaderWriter {
 public:
  GgufWriter(const ModelFile& source, GgufHeader header) : source_(source), header_(std::move(header)) {}

  std::uint64_t alignment() const override { return header_.alignment; }

  std::string bytes() override {
    require_recorded(source_, tensors, header_.p12_type_id.has_value(), true);
    std::swap(tensors, header_.tensors);
    const std::vector<std::uint8_t> header = header_.serialize(*source_.file);
    std::swap(tensors, header_.tensors);
    return std::string(header.begin(), header.end());
  }

 private:
  std::string reserve(bool) override { return bytes(); }

  const ModelFile& source_;
  GgufHeader header_;
};

class SafetensorsWriter final : public HeaderWriter {
 public:
  // `original`: the header text to give back, where it fits.
  SafetensorsWriter(const ModelFile& source, SafetensorsOutput output, std::optional<std::string> original)
      : source_(source), output_(std::move(output)), original_(std::move(original)) {}

  std::uint64_t alignment() const override { return 1; }

  std::string bytes() override { return original_ ? original_bytes() : text(); }

 private:
  std::string reserve(bool exact) override {
    if (original_ && matches_original()) return original_bytes();
    original_.reset();
    std::string header = text();
    text_bytes_ = header.size() - 8;
    if (exact) return header;
    header.clear();
    header.shrink_to_fit();
    // "U8" may turn out to be "BF16" after all; everything else can only become shorter.
    const auto packed =
        std::count_if(tensors.begin(), tensors.end(), [](const Tensor& t) { return types::is_packed(t.type); });
    text_bytes_ = align_up(text_bytes_ + 2 * static_cast<std::uint64_t>(packed), 8);
    return text();
  }

  std::string text() const {
    require_recorded(source_, tensors, output_.record.p12, output_.record.pn);
    return output_.serialize(tensors, text_bytes_);
  }

  std::string original_bytes() const {
    std::string bytes;
    bytes.reserve(8 + original_->size());
    for (std::size_t i = 0; i < 8; ++i)
      bytes += static_cast<char>(static_cast<std::uint64_t>(original_->size()) >> (8 * i) & 0xFFu);
    return bytes += *original_;
  }

  // Is p12.header the header of exactly the file that is being written? That it describes other tensors is an error;
  // other types it may have where PN was decoded to another type, or weights were rounded before packing.
  bool matches_original() const {
    const SafetensorsHeader header = parse_safetensors_header(original_->data(), original_->size(), source_.path(),
                                                              "p12.header in its __metadata__", {});
    const auto fail = [&](const std::string& what) {
      throw Error(Fault::input, source_.path(), "does not describe this file: " + what).about("key p12.header");
    };
    const PackRecord& record = source_.record();
    const bool types_may_differ = record.pn || !record.rounded_from.empty();
    if (original_->empty() || original_->front() != '{') fail("it does not begin with {");
    if (header.entries.size() != tensors.size()) fail("it has another number of tensors");
    if (header.metadata != output_.metadata) fail("its __metadata__ is another");
    bool same = true;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const SafetensorsEntry& entry = header.entries[i];
      const Tensor& tensor = tensors[i];
      if (entry.name != tensor.name || entry.shape != tensor.shape) fail("tensor " + tensor.name + " differs");
      const bool same_type = entry.dtype == types::dtype_of(tensor.type);
      if (!same_type && !types_may_differ) fail("tensor " + tensor.name + " has another type");
      same = same && same_type && entry.begin == tensor.offset && entry.end == tensor.offset + tensor.bytes;
    }
    if (!same && !types_may_differ) fail("its tensors lie elsewhere");
    return same;
  }

  const ModelFile& source_;
  SafetensorsOutput output_;
  std::optional<std::string> original_;
  std::uint64_t text_bytes_ = 0;
};

// What GGUF cannot hold of a safetensors file.
void require_fits_gguf(const ModelFile& source) {
  for (const auto& [name, value] : source.safetensors().metadata)
    if (name == "general.alignment" || name.rfind("split.", 0) == 0)
      fail(source, "key " + name, "would mean something else in GGUF");
  for (const Tensor& tensor : source.tensors()) {
    if (tensor.shape.size() > 4) fail(source, "tensor " + tensor.name, "has more than the 4 dimensions of GGUF");
    if (!types::is_p12(tensor.type) && !tensor.type.id)
      fail(source, "tensor " + tensor.name, "is " + tensor.type.name + ", which GGUF does not have");
  }
}

// What a safetensors file cannot hold of a GGUF file.
void require_fits_safetensors(const ModelFile& source) {
  const Gguf& gguf = source.gguf();
  for (const GgufKey& key : gguf.keys) {
    if (is_own_key(key.name)) continue;
    const std::string subject = "key " + key.name;
    if (!is_string(key)) fail(source, subject, "would be lost: safetensors files hold only keys that are strings");
    if (!is_json_text(key.name) || !is_json_text(string_value(*source.file, key)))
      fail(source, subject, "is not UTF-8, which texts in safetensors files are");
  }
  if (gguf.tail_start != source.file->size())
    throw Error(Fault::input, source.path(), "the bytes after its data would be lost").at(gguf.tail_start);
  for (const Tensor& tensor : gguf.tensors) {
    const std::string subject = "tensor " + tensor.name;
    if (!is_json_text(tensor.name))
      fail(source, subject, "has a name that is not UTF-8, which names in safetensors files are");
    if (tensor.name == "__metadata__") fail(source, subject, "has a name that safetensors files reserve");
    if (types::is_pn(tensor.type))
      fail(source, subject, "is " + tensor.type.name + " already, and from which type nobody knows");
    if (types::dtype_of(tensor.type).empty())
      fail(source, subject, "is " + tensor.type.name + ", which safetensors files do not have");
  }
}

std::unique_ptr<HeaderWriter> gguf_writer(const ModelFile& source, const PackRecord& record) {
  GgufHeader header;
  header.p12_type_id = record.p12_type_id;
  Keys own = p12_keys(record);
  if (source.kind == FileKind::gguf) {
    const Gguf& gguf = source.gguf();
    header.version = gguf.version;
    header.alignment = gguf.alignment;
    header.padded = gguf.data_start <= source.file->size();
    for (const GgufKey& key : gguf.keys) {
      const bool stays = record.p12 && gguf.record.p12 && is_p12_key(key.name);
      if (stays || !is_own_key(key.name)) header.kept.push_back(key);
    }
    if (gguf.record.p12) own.clear();  // they stay as they are, or go
  } else {
    require_fits_gguf(source);
    for (const auto& [name, value] : source.safetensors().metadata) header.added.emplace_back(name, value);
  }
  header.added.insert(header.added.end(), own.begin(), own.end());
  const Keys pn = pn_keys(record);
  header.added.insert(header.added.end(), pn.begin(), pn.end());
  return std::make_unique<GgufWriter>(source, std::move(header));
}

std::string header_text(const ModelFile& source) {
  std::vector<std::uint8_t> scratch;
  const std::size_t length = static_cast<std::size_t>(source.safetensors().header_bytes);
  const std::uint8_t* bytes = source.file->read(8, length, scratch);
  return std::string(reinterpret_cast<const char*>(bytes), length);
}

std::unique_ptr<HeaderWriter> safetensors_writer(const ModelFile& source, HeaderContent content,
                                                 const PackRecord& record) {
  SafetensorsOutput output;
  output.record = record;
  output.sources = &source.tensors();
  std::optional<std::string> original;
  if (source.kind == FileKind::safetensors) {
    const Safetensors& other = source.safetensors();
    output.metadata = other.metadata;
    output.metadata_place = other.metadata_place;
    if (content == HeaderContent::original && other.record.has_header) original = other.original_header;
    if (record.has_header)
      output.original_header = other.record.has_header ? other.original_header : header_text(source);
    // Where all there was is ours, the input had no __metadata__.
    if (!record.any() && other.metadata.empty() && !other.record.first_key.empty()) output.metadata_place.reset();
  } else {
    require_fits_safetensors(source);
    for (const GgufKey& key : source.gguf().keys)
      if (!is_own_key(key.name)) output.metadata.emplace_back(key.name, string_value(*source.file, key));
  }
  return std::make_unique<SafetensorsWriter>(source, std::move(output), std::move(original));
}

}  // namespace

std::string HeaderWriter::plan(const Layout& source, const std::vector<TensorType>& types, bool exact) {
  tensors = source.tensors;
  std::uint64_t offset = 0;
  for (const std::size_t i : source.data_order) {
    Tensor& tensor = tensors[i];
    const std::uint64_t before = tensor.bytes;
    if (types[i] != tensor.type) {
      tensor.type = types[i];
      tensor.bytes = bytes_of(types[i], tensor.elements);
    }
    offset = align_up(offset, alignment());
    tensor.offset = offset;
    offset += exact ? tensor.bytes : std::max(tensor.bytes, before);
  }
  return reserve(exact);
}

std::unique_ptr<HeaderWriter> make_header_writer(const ModelFile& source, FileKind kind, HeaderContent content,
                                                 const PackRecord& record) {
  const PackRecord none;
  const PackRecord& used = content == HeaderContent::original ? none : record;
  return kind == FileKind::gguf ? gguf_writer(source, used) : safetensors_writer(source, content, used);
}

}  // namespace pn::io
