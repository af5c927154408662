// A model: one file, or several that belong together. What a path names is told by content, never by its name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "gguf.hpp"
#include "input_file.hpp"
#include "layout.hpp"
#include "safetensors.hpp"

namespace pn::io {

struct ModelFile {
  std::string name;  // without its folder
  FileKind kind = FileKind::gguf;
  std::unique_ptr<InputFile> file;
  std::unique_ptr<Layout> layout;  // a Gguf or a Safetensors, by kind

  const Gguf& gguf() const { return static_cast<const Gguf&>(*layout); }
  const Safetensors& safetensors() const { return static_cast<const Safetensors&>(*layout); }
  const std::vector<Tensor>& tensors() const { return layout->tensors; }
  const PackRecord& record() const { return layout->record; }
  const std::string& path() const { return file->path(); }
};

class Model {
 public:
  // Opens a GGUF or safetensors file, an index of safetensors files, the first of the files of a split GGUF model, or a
  // folder that holds exactly one such index or one complete split model. All headers are read and checked, also
  // against each other. Throws Error (Fault::input).
  explicit Model(std::string path);

  const std::string& path() const noexcept { return path_; }  // as the user gave it
  FileKind kind() const noexcept { return kind_; }
  // A model in several files (or one that an index names): its copy is a folder.
  bool in_folder() const noexcept { return in_folder_; }
  const std::vector<ModelFile>& files() const noexcept { return files_; }
  // The index of safetensors files, with its name.
  const std::optional<SafetensorsIndex>& index() const noexcept { return index_; }
  const std::string& index_name() const noexcept { return index_name_; }

  std::uint64_t tensor_count() const;
  std::uint64_t tensor_bytes() const;
  // The index's total_size, where it is not the sum of the tensors' bytes.
  std::optional<std::string> odd_total_size() const;
  bool has_packed_tensors() const;
  bool has_pn_tensors() const;
  // Files that an output must not be, as identities.
  std::vector<FileIdentity> identities() const;
  // Things that are odd, but no error.
  const std::vector<std::string>& warnings() const noexcept { return warnings_; }
  // Throws Error (Fault::input) when a file was changed since it was opened, as far as its size and times tell.
  void require_unchanged() const;

 private:
  bool has_tensors_of(bool (*is_wanted)(const TensorType&)) const;
  void open_folder();
  void open_index(const std::string& path);
  void open_split(const std::string& first);
  void add_file(const std::string& path, const std::string& name);
  void check_index(const std::string& path);
  void check_split();
  void check_files() const;

  std::string path_;
  FileKind kind_ = FileKind::gguf;
  bool in_folder_ = false;
  std::vector<ModelFile> files_;
  std::optional<SafetensorsIndex> index_;
  std::string index_name_;
  std::unique_ptr<InputFile> index_file_;
  std::vector<FileIdentity> folder_identities_;
  std::vector<std::string> warnings_;
};

// A tensor and the file that it is in.
struct TensorIn {
  const ModelFile* file = nullptr;
  const Tensor* tensor = nullptr;
};

// The tensors of a model by name. The model must outlive this.
class TensorsByName {
 public:
  explicit TensorsByName(const Model& model);

  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  std::optional<TensorIn> find(const std::string& name) const;
  // find(), and forgets it: what is left was never asked for.
  std::optional<TensorIn> take(const std::string& name);

 private:
  std::unordered_map<std::string, TensorIn> tensors_;
};

// The files that a path may be about, before any header is read: itself, for a folder all that is in it, and for one
// file of a model in several its folder.
std::vector<FileIdentity> identities_at(const std::string& path);

// True when a folder holds nothing but one model in several files (an index and exactly its files, or a complete split
// model), or nothing at all. Such a folder may be replaced by another.
bool is_only_a_model(const std::string& folder);

// Keys and entries of __metadata__ that are not ours, as texts that can be compared within a kind of file: entries of a
// GGUF header as they are, values of __metadata__.
std::vector<std::pair<std::string, std::string>> foreign_entries(const ModelFile& file);

}  // namespace pn::io
