#include "recipe.hpp"

#include <fmt/format.h>

namespace pnpack {

using pn::io::Error;
using pn::io::Fault;
using pn::io::Tensor;
using pn::io::TensorType;
namespace types = pn::io::types;

namespace {

const TensorType& type_of(Treatment treatment) {
  switch (treatment) {
    case Treatment::pn3t: return types::pn3t();
    case Treatment::q8_0: return types::q8_0();
    default: return types::pn4t();
  }
}

// Experts of a mixture lie one after another: dimensions before the last two.
std::uint64_t matrices_of(const Tensor& tensor) {
  std::uint64_t count = 1;
  for (std::size_t i = 0; i + 2 < tensor.shape.size(); ++i) count *= tensor.shape[i];
  return count;
}

[[noreturn]] void fail_usage(const Options& options, const std::string& message) {
  throw Error(Fault::usage, options.input, message);
}

void require_consistent(const Options& options) {
  if (!options.type.empty() && !options.mix.empty()) fail_usage(options, "--type and --mix exclude each other");
  if (options.mix.empty() && !options.promote.empty()) fail_usage(options, "--promote is for the rules of --mix");
  if (options.imatrix.empty() && options.search == "weighted")
    fail_usage(options, "--search weighted needs importances: --imatrix FILE");
  if (!options.imatrix.empty() && options.rotate != 0)
    fail_usage(options,
               "--imatrix and --rotate exclude each other: importances belong to columns, and rotation mixes them");
  if (options.verb == "quantize" && options.mix.empty() && !options.donor.empty())
    fail_usage(options, "--donor is for the rules of --mix");
}

}  // namespace

bool is_embedding(const std::string& name) {
  const std::string ending = "embed_tokens.weight";
  return name == "token_embd.weight" ||
         (name.size() >= ending.size() && name.compare(name.size() - ending.size(), ending.size(), ending) == 0);
}

std::vector<std::string> Recipe::files(const Options& options) {
  std::vector<std::string> files;
  for (const std::string* file : {&options.mix, &options.promote, &options.donor, &options.imatrix})
    if (!file->empty()) files.push_back(*file);
  return files;
}

Recipe::Recipe(const Options& options) : rotation_(options.rotate) {
  require_consistent(options);
  if (!options.mix.empty()) {
    rules_ = std::make_unique<pn::io::InputFile>(options.mix);
    if (!options.promote.empty()) promoted_ = std::make_unique<pn::io::InputFile>(options.promote);
    mix_ = Mix::read(*rules_, promoted_.get());
  } else if (!options.type.empty()) {
    mix_ = Mix::of_type(options.type == types::pn3t().name ? Treatment::pn3t : Treatment::pn4t);
  }
  if (mix_) used_rules_.resize(mix_->rules().size());
  if (!options.donor.empty()) {
    donor_ = std::make_unique<pn::io::Model>(options.donor);
    if (donor_->kind() != pn::io::FileKind::gguf) throw Error(Fault::input, options.donor, "a donor is a GGUF file");
    donor_tensors_.emplace(*donor_);
  }
  if (!options.imatrix.empty()) {
    imatrix_file_ = std::make_unique<pn::io::InputFile>(options.imatrix);
    imatrix_ = std::make_unique<pn::io::Imatrix>(*imatrix_file_);
  }
  weighted_search_ = imatrix_ && options.search != "reference";
}

TensorPlan Recipe::plan(const Tensor& tensor) {
  TensorPlan plan;
  plan.type = tensor.type;
  if (promoted_) names_seen_.insert(tensor.name);
  const bool quantizable = tensor.shape.size() >= 2 && can_quantize_from(tensor.type) && tensor.elements != 0;
  plan.rule = mix_->match(tensor.name, tensor.row_length());
  if (plan.rule == nullptr) {
    plan.fallback = quantizable;
    plan.reason = "no rule matches";
    return plan;
  }
  used_rules_[static_cast<std::size_t>(plan.rule - mix_->rules().data())] = true;
  if (plan.rule->treatment == Treatment::donor) {
    take_from_donor(tensor, plan);
  } else if (plan.rule->treatment == Treatment::keep) {
    plan.reason = "kept";
  } else if (tensor.shape.size() < 2) {
    plan.reason = "1-D";
  } else if (!can_quantize_from(tensor.type)) {
    plan.reason = "not F32, F16, BF16 or BF16_P12";
  } else if (tensor.elements == 0) {
    plan.reason = "no elements";
  } else if (const TensorType& type = type_of(plan.rule->treatment); tensor.row_length() % type.block != 0) {
    plan.fallback = true;
    plan.reason = fmt::format("K is not a multiple of {}", type.block);
  } else {
    plan.treatment = plan.rule->treatment;
    plan.type = type;
    if (const pn::io::ImatrixEntry* entry = imatrix_ ? imatrix_->find(tensor.name) : nullptr) {
      imatrix_->require_shape(*entry, tensor.row_length(), matrices_of(tensor));
      ++importances_met_;
      importances_for_pn_ = importances_for_pn_ || types::is_pn(type);
    }
  }
  return plan;
}

void Recipe::take_from_donor(const Tensor& tensor, TensorPlan& plan) const {
  if (!donor_)
    throw Error(Fault::usage, rules_->path(), "takes tensors from a donor: --donor FILE.gguf is needed")
        .about(fmt::format("line {}", plan.rule->line));
  const std::optional<pn::io::TensorIn> found = donor_tensors_->find(tensor.name);
  if (!found) throw Error(Fault::input, donor_->path(), "is not in the donor").about("tensor " + tensor.name);
  const Tensor& other = *found->tensor;
  const auto fail = [&](const std::string& message) {
    throw Error(Fault::input, found->file->path(), message).about("tensor " + tensor.name).at(other.offset);
  };
  if (other.shape != tensor.shape)
    fail(fmt::format("the donor's has the shape [{}], but the model's [{}]", fmt::join(other.shape, ", "),
                     fmt::join(tensor.shape, ", ")));
  if (!other.type.known()) fail("the donor's type is " + other.type.name + ", whose size nobody knows");
  if (types::is_packed(other.type)) fail("the donor's is packed: " + other.type.name);
  plan.treatment = Treatment::donor;
  plan.type = other.type;
  plan.donor = *found;
}

std::vector<std::string> Recipe::warnings() const {
  std::vector<std::string> warnings;
  if (rules_) {
    for (std::size_t i = 0; i < used_rules_.size(); ++i)
      if (!used_rules_[i])
        warnings.push_back(fmt::format("the rule in line {} decides about no tensor: {}", mix_->rules()[i].line,
                                       mix_->rules()[i].text));
    for (const PromotedName& promoted : mix_->promoted())
      if (names_seen_.find(promoted.name) == names_seen_.end())
        warnings.push_back(fmt::format("the promoted name in line {} is no tensor: {}", promoted.line, promoted.name));
    if (!mix_->promoted().empty() && !mix_->uses_promoted())
      warnings.push_back("no rule asks for @promoted: the names of --promote change nothing");
  }
  if (imatrix_ && importances_met_ == 0)
    warnings.push_back("the importances name none of the tensors that are quantized");
  return warnings;
}

std::vector<pn::io::FileIdentity> Recipe::identities() const {
  return donor_ ? donor_->identities() : std::vector<pn::io::FileIdentity>();
}

void Recipe::require_unchanged() const {
  for (const pn::io::InputFile* file : {rules_.get(), promoted_.get(), imatrix_file_.get()})
    if (file != nullptr) file->require_unchanged();
  if (donor_) donor_->require_unchanged();
}

std::uint32_t Recipe::rotation_of(const std::string& name) const { return is_embedding(name) ? 0 : rotation_; }

std::optional<Importance> Recipe::importance_of(const Tensor& tensor) const {
  const pn::io::ImatrixEntry* entry = imatrix_ ? imatrix_->find(tensor.name) : nullptr;
  if (entry == nullptr) return {};
  Importance importance;
  importance.k = tensor.row_length();
  const std::uint64_t matrices = matrices_of(tensor);
  importance.matrix_elements = tensor.elements / matrices;
  imatrix_->require_shape(*entry, importance.k, matrices);
  for (std::uint64_t m = 0; m < matrices; ++m) {
    const std::vector<double> columns = imatrix_->read(*entry, m, importance.k, matrices);
    importance.values.insert(importance.values.end(), columns.begin(), columns.end());
  }
  return importance;
}

std::unique_ptr<Conversion> Recipe::conversion(const Tensor& tensor, const TensorType& to, std::uint32_t rotation,
                                               bool weighted_search, const Importance* importance) const {
  if (to == types::q8_0()) return make_q8_0_quantizer(tensor.type, importance);
  return make_pn_quantizer(tensor.type, to, {rotation, importance, weighted_search && importance != nullptr});
}

}  // namespace pnpack
