#include "model.hpp"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <set>
#include <system_error>
#include <unordered_map>

#include "error.hpp"

namespace pn::io {
namespace {

constexpr const char* index_ending = ".safetensors.index.json";

bool ends_with(const std::string& text, const std::string& ending) {
  return text.size() >= ending.size() && text.compare(text.size() - ending.size(), ending.size(), ending) == 0;
}

std::string folder_prefix(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }
std::string last_part(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::vector<std::string> list_folder(const std::string& path) {
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) throw Error(Fault::input, path, std::generic_category().message(errno));
  std::vector<std::string> names;
  errno = 0;  // which tells the end of a folder from one that cannot be read
  // NOLINTNEXTLINE(concurrency-mt-unsafe): it is safe where each thread has a folder of its own
  while (const dirent* entry = ::readdir(folder)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  const int error = errno;
  ::closedir(folder);
  if (error != 0) throw Error(Fault::input, path, std::generic_category().message(error));
  std::sort(names.begin(), names.end());
  return names;
}

// PREFIX-00001-of-00003.gguf, as llama.cpp names the files of a split model.
struct SplitName {
  std::string prefix;
  unsigned number = 0;
  unsigned count = 0;
};

constexpr std::size_t split_ending_length = sizeof "-00001-of-00003.gguf" - 1;

std::string split_name(const std::string& prefix, unsigned number, unsigned count) {
  char ending[40];
  std::snprintf(ending, sizeof ending, "-%05u-of-%05u.gguf", number, count);
  return prefix + ending;
}

std::optional<SplitName> parse_split_name(const std::string& name) {
  if (name.size() < split_ending_length) return {};
  SplitName split;
  split.prefix = name.substr(0, name.size() - split_ending_length);
  const std::string ending = name.substr(split.prefix.size());
  const auto digits = [&](std::size_t at) {
    unsigned value = 0;
    for (std::size_t i = at; i < at + 5; ++i) {
      if (ending[i] < '0' || ending[i] > '9') return 0u;
      value = value * 10 + static_cast<unsigned>(ending[i] - '0');
    }
    return value;
  };
  split.number = digits(1);
  split.count = digits(10);
  if (split.number == 0 || split.count == 0 || split_name(split.prefix, split.number, split.count) != name) return {};
  return split;
}

// The split models of which a list of names has at least one file: prefix and count.
std::set<std::pair<std::string, unsigned>> split_models(const std::vector<std::string>& names) {
  std::set<std::pair<std::string, unsigned>> models;
  for (const std::string& name : names)
    if (const auto split = parse_split_name(name)) models.emplace(split->prefix, split->count);
  return models;
}

FileIdentity identity_of(const struct stat& info) {
  return {static_cast<std::uint64_t>(info.st_dev), static_cast<std::uint64_t>(info.st_ino)};
}

// A split.* key as a number; they have changed their integer type over time.
std::optional<std::uint64_t> split_number(const ModelFile& file, const char* name) {
  const GgufKey* key = file.gguf().find(name);
  if (key == nullptr) return {};
  if (!is_integer(*key))
    throw Error(Fault::input, file.path(), "must be an integer").about("key " + key->name).at(key->offset);
  return key->number;
}

}  // namespace

Model::Model(std::string path) : path_(std::move(path)) {
  struct stat info {};
  if (::stat(path_.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) {
    folder_identities_.push_back(identity_of(info));
    open_folder();
  } else {
    auto file = std::make_unique<InputFile>(path_);
    if (looks_like_gguf(*file)) {
      add_file(path_, last_part(path_));
      if (split_number(files_[0], "split.count").value_or(1) > 1) open_split(path_);
    } else if (looks_like_json(*file)) {
      open_index(path_);
    } else if (looks_like_safetensors(*file) || ends_with(path_, ".safetensors")) {
      kind_ = FileKind::safetensors;
      add_file(path_, last_part(path_));
    } else {
      throw Error(Fault::input, path_, "is neither a GGUF nor a safetensors file (by how it begins)").at(0);
    }
  }
}

void Model::open_folder() {
  const std::string prefix = path_ + (ends_with(path_, "/") ? "" : "/");
  const std::vector<std::string> names = list_folder(path_);
  std::vector<std::string> indexes;
  std::copy_if(names.begin(), names.end(), std::back_inserter(indexes),
               [](const std::string& name) { return ends_with(name, index_ending); });
  const auto splits = split_models(names);
  if (indexes.size() + splits.size() > 1)
    throw Error(Fault::input, path_,
                "the folder holds more than one model: " + std::to_string(indexes.size()) + " with an index (*" +
                    index_ending + ") and " + std::to_string(splits.size()) +
                    " split GGUF models; name an index or a first file");
  if (indexes.size() == 1) {
    open_index(prefix + indexes[0]);
    for (const std::string& name : names)
      if (ends_with(name, ".safetensors") &&
          std::none_of(files_.begin(), files_.end(), [&](const ModelFile& file) { return file.name == name; }))
        warnings_.push_back("the index does not name " + name + ": it is left out");
  } else if (splits.size() == 1) {
    open_split(prefix + split_name(splits.begin()->first, 1, splits.begin()->second));
  } else {
    throw Error(Fault::input, path_,
                "the folder holds no model in several files: neither *" + std::string(index_ending) +
                    " nor *-00001-of-0000N.gguf; name a file");
  }
}

void Model::add_file(const std::string& path, const std::string& name) {
  ModelFile entry;
  entry.name = name;
  entry.kind = kind_;
  entry.file = std::make_unique<InputFile>(path);
  if (kind_ == FileKind::gguf) {
    entry.layout = std::make_unique<Gguf>(read_gguf(*entry.file));
  } else {
    entry.layout = std::make_unique<Safetensors>(read_safetensors(*entry.file));
  }
  files_.push_back(std::move(entry));
}

void Model::open_index(const std::string& path) {
  kind_ = FileKind::safetensors;
  in_folder_ = true;
  index_file_ = std::make_unique<InputFile>(path);
  index_name_ = last_part(path);
  index_ = read_safetensors_index(*index_file_);
  std::set<std::string> names;
  for (const auto& [tensor, file] : index_->files) {
    if (file == index_name_)
      throw Error(Fault::input, path, "is said to be in the index itself").about("tensor " + tensor);
    names.insert(file);
  }
  if (names.empty()) throw Error(Fault::input, path, "the index names no file");
  for (const std::string& name : names) add_file(folder_prefix(path) + name, name);
  check_files();
  check_index(path);
}

void Model::check_index(const std::string& path) {
  const TensorsByName tensors(*this);
  for (const auto& [name, file] : index_->files) {
    const auto found = tensors.find(name);
    if (found && found->file->name == file) continue;
    throw Error(Fault::input, path,
                "is said to be in " + file + ", " +
                    (found ? "but is in " + found->file->name : std::string("which does not have it")))
        .about("tensor " + name);
  }
  if (tensor_count() != index_->files.size())
    warnings_.push_back(std::to_string(tensor_count() - index_->files.size()) +
                        " tensors are not named by the index; they are treated like the others");
}

void Model::open_split(const std::string& first) {
  const auto name = parse_split_name(last_part(first));
  if (!name)
    throw Error(Fault::input, first,
                "belongs to a split model (split.count), but is not named like one (NAME-00001-of-0000N.gguf)");
  if (name->number != 1)
    throw Error(Fault::input, first,
                "is number " + std::to_string(name->number) + " of " + std::to_string(name->count) +
                    " files of a split model: name the first, " + split_name(name->prefix, 1, name->count));
  in_folder_ = true;
  // The first is open already when it is what the user named.
  for (unsigned i = static_cast<unsigned>(files_.size()) + 1; i <= name->count; ++i) {
    const std::string file = split_name(name->prefix, i, name->count);
    add_file(folder_prefix(first) + file, file);
  }
  check_files();
  check_split();
}

void Model::check_split() {
  std::uint64_t tensors = 0;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    const ModelFile& file = files_[i];
    const auto require = [&](const char* key, std::uint64_t expected) {
      const auto value = split_number(file, key);
      if (!value) throw Error(Fault::input, file.path(), "is missing").about(std::string("key ") + key);
      if (*value != expected)
        throw Error(Fault::input, file.path(),
                    "is " + std::to_string(*value) + ", but should be " + std::to_string(expected))
            .about(std::string("key ") + key);
    };
    require("split.count", files_.size());
    require("split.no", i);
    tensors += file.tensors().size();
  }
  const auto expected = split_number(files_[0], "split.tensors.count");
  if (expected && *expected != tensors)
    throw Error(Fault::input, files_[0].path(),
                "is " + std::to_string(*expected) + ", but the files have " + std::to_string(tensors) + " tensors")
        .about("key split.tensors.count");
}

void Model::check_files() const {
  std::unordered_map<std::string, const std::string*> where;
  for (const ModelFile& file : files_) {
    for (const Tensor& tensor : file.tensors()) {
      const auto [other, is_new] = where.emplace(tensor.name, &file.name);
      if (!is_new)
        throw Error(Fault::input, file.path(), "is in " + *other->second + " too").about("tensor " + tensor.name);
    }
    const PackRecord& a = files_[0].record();
    const PackRecord& b = file.record();
    if (a.p12 != b.p12 || a.pn != b.pn || a.p12_type_id != b.p12_type_id || a.hadamard_block != b.hadamard_block ||
        a.weighted_search != b.weighted_search || a.rounded_from != b.rounded_from || a.has_header != b.has_header)
      throw Error(Fault::input, file.path(), "was packed or quantized in another way than " + files_[0].name);
  }
}

std::uint64_t Model::tensor_count() const {
  std::uint64_t count = 0;
  for (const ModelFile& file : files_) count += file.tensors().size();
  return count;
}

std::uint64_t Model::tensor_bytes() const {
  std::uint64_t total = 0;
  for (const ModelFile& file : files_)
    for (const Tensor& tensor : file.tensors()) total += tensor.bytes;
  return total;
}

std::optional<std::string> Model::odd_total_size() const {
  const std::string text = index_ ? index_->total_size_text() : std::string();
  if (text.empty() || text == std::to_string(tensor_bytes())) return {};
  return text;
}

bool Model::has_tensors_of(bool (*is_wanted)(const TensorType&)) const {
  return std::any_of(files_.begin(), files_.end(), [&](const ModelFile& file) {
    return std::any_of(file.tensors().begin(), file.tensors().end(),
                       [&](const Tensor& tensor) { return is_wanted(tensor.type); });
  });
}

bool Model::has_packed_tensors() const { return has_tensors_of(types::is_packed); }
bool Model::has_pn_tensors() const { return has_tensors_of(types::is_pn); }

std::vector<FileIdentity> Model::identities() const {
  std::vector<FileIdentity> all = folder_identities_;
  for (const ModelFile& file : files_) all.push_back(file.file->identity());
  if (index_file_) all.push_back(index_file_->identity());
  return all;
}

void Model::require_unchanged() const {
  for (const ModelFile& file : files_) file.file->require_unchanged();
  if (index_file_) index_file_->require_unchanged();
}

TensorsByName::TensorsByName(const Model& model) {
  for (const ModelFile& file : model.files())
    for (const Tensor& tensor : file.tensors()) tensors_.emplace(tensor.name, TensorIn{&file, &tensor});
}

std::optional<TensorIn> TensorsByName::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return {};
  return found->second;
}

std::optional<TensorIn> TensorsByName::take(const std::string& name) {
  const std::optional<TensorIn> found = find(name);
  tensors_.erase(name);
  return found;
}

std::vector<FileIdentity> identities_at(const std::string& path) {
  std::vector<FileIdentity> all;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return all;
  all.push_back(identity_of(info));
  if (S_ISREG(info.st_mode)) {
    // One file of a model in several stands for its folder.
    const InputFile file(path);
    const std::string folder = folder_prefix(path);
    const bool of_several = looks_like_json(file) || (looks_like_gguf(file) && parse_split_name(last_part(path)));
    if (of_several && ::stat(folder.empty() ? "." : folder.c_str(), &info) == 0) all.push_back(identity_of(info));
    return all;
  }
  if (!S_ISDIR(info.st_mode)) return all;
  for (const std::string& name : list_folder(path))
    if (::stat((path + "/" + name).c_str(), &info) == 0 && S_ISREG(info.st_mode)) all.push_back(identity_of(info));
  return all;
}

bool is_only_a_model(const std::string& folder) {
  std::vector<std::string> names = list_folder(folder);
  if (names.empty()) return true;
  for (const std::string& name : names) {
    struct stat info {};
    if (::lstat((folder + "/" + name).c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return false;
  }
  try {
    const Model model(folder);
    std::vector<std::string> expected;
    for (const ModelFile& file : model.files()) expected.push_back(file.name);
    if (model.index()) expected.push_back(model.index_name());
    std::sort(expected.begin(), expected.end());
    return names == expected;
  } catch (const Error&) {
    return false;
  }
}

std::vector<std::pair<std::string, std::string>> foreign_entries(const ModelFile& file) {
  if (file.kind == FileKind::safetensors) return file.safetensors().metadata;
  std::vector<std::pair<std::string, std::string>> entries;
  std::vector<std::uint8_t> scratch;
  for (const GgufKey& key : file.gguf().keys) {
    if (is_own_key(key.name)) continue;
    const std::uint8_t* bytes = file.file->read(key.offset, static_cast<std::size_t>(key.bytes), scratch);
    entries.emplace_back(key.name,
                         std::string(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(key.bytes)));
  }
  return entries;
}

}  // namespace pn::io
