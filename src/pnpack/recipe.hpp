// How a model is quantized: the rules, the donor and the importances that the user named, and what they mean for a
// tensor.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conversion.hpp"
#include "io/imatrix.hpp"
#include "io/model.hpp"
#include "mix.hpp"
#include "options.hpp"
#include "report.hpp"

namespace pnpack {

// What becomes of a tensor.
struct TensorPlan {
  Treatment treatment = Treatment::keep;
  pn::io::TensorType type;     // afterwards
  const Rule* rule = nullptr;  // that decided; null: none matched
  std::string reason;          // why it stays as it is
  bool fallback = false;       // it could have been quantized, and no rule says that it should stay
  pn::io::TensorIn donor;      // where it comes from instead
};

class Recipe {
 public:
  // Opens what the options name. Throws Error: Fault::usage for options that contradict each other.
  explicit Recipe(const Options& options);

  // The files that it reads, for checks before anything is opened.
  static std::vector<std::string> files(const Options& options);

  bool has_rules() const { return mix_.has_value(); }
  // After all plans: whether any tensor that becomes PN is searched by importance.
  bool weighted_search() const { return weighted_search_ && importances_for_pn_; }
  bool has_importances() const { return imatrix_ != nullptr; }

  // What the rules make of a tensor. Throws Error about the donor.
  TensorPlan plan(const pn::io::Tensor& tensor);
  // The donor's tensor of this name and shape: fills in treatment, type and donor. Throws Error when it has none.
  void take_from_donor(const pn::io::Tensor& tensor, TensorPlan& plan) const;
  bool donor_has(const std::string& name) const { return donor_tensors_ && donor_tensors_->has(name); }

  // Of the donor: what an output must not be.
  std::vector<pn::io::FileIdentity> identities() const;
  // Throws Error when one of its files was changed since it was opened.
  void require_unchanged() const;

  // After all plans: rules and promoted names that met no tensor, importances that met none.
  std::vector<std::string> warnings() const;

  // The Hadamard block for a tensor that becomes PN; 0: not rotated.
  std::uint32_t rotation_of(const std::string& name) const;

  // The importances of a tensor, if there are any.
  std::optional<Importance> importance_of(const pn::io::Tensor& tensor) const;
  // Its conversion. `importance` must outlive it.
  std::unique_ptr<Conversion> conversion(const pn::io::Tensor& tensor, const pn::io::TensorType& to,
                                         std::uint32_t rotation, bool weighted_search,
                                         const Importance* importance) const;

 private:
  std::unique_ptr<pn::io::InputFile> rules_;
  std::unique_ptr<pn::io::InputFile> promoted_;
  std::optional<Mix> mix_;
  std::vector<bool> used_rules_;
  std::unordered_set<std::string> names_seen_;  // promoted names among the tensors
  std::unique_ptr<pn::io::Model> donor_;
  std::optional<pn::io::TensorsByName> donor_tensors_;
  std::unique_ptr<pn::io::InputFile> imatrix_file_;
  std::unique_ptr<pn::io::Imatrix> imatrix_;
  std::size_t importances_met_ = 0;
  bool importances_for_pn_ = false;
  bool weighted_search_ = false;
  std::uint32_t rotation_ = 0;
};

// Token embeddings are never rotated: a look-up would return rotated rows.
bool is_embedding(const std::string& name);

}  // namespace pnpack
