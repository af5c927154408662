// quantize: F32, F16, BF16 or BF16_P12 -> pn3t or pn4t with the reference quantizer; by rules also Q8_0, and tensors of
// another file.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "recipe.hpp"
#include "rewrite.hpp"
#include "verbs.hpp"

namespace pnpack {

using pn::io::Error;
using pn::io::Fault;
using pn::io::FileKind;
using pn::io::ModelFile;
using pn::io::Tensor;
using pn::io::TensorType;
namespace types = pn::io::types;

namespace {

void require_quantizable(const pn::io::Model& model) {
  for (const ModelFile& file : model.files()) {
    if (file.record().pn)
      throw Error(Fault::input, file.path(), "was already quantized by pnpack").about("key " + file.record().pn_key);
    // Without keys nobody knows whether these are rotated, and the keys that are added would say that they are not.
    for (const Tensor& tensor : file.tensors())
      if (types::is_pn(tensor.type))
        throw Error(Fault::input, file.path(), "is " + tensor.type.name + " already, from another program")
            .about("tensor " + tensor.name)
            .at(tensor.offset);
  }
}

// "line 3: *.attn_k.weight pn4t", for a report that has it for many tensors.
std::string rule_text(const Rule& rule) {
  constexpr std::size_t longest = 80;
  const std::string text = rule.text.size() <= longest ? rule.text : rule.text.substr(0, longest) + "...";
  return fmt::format("line {}: {}", rule.line, text);
}

class Quantization {
 public:
  Quantization(const Options& options, const Job& job, Recipe& recipe, Report& report)
      : options_(options), job_(job), recipe_(recipe), report_(report) {
    std::size_t next = 0;
    for (const ModelFile& file : job.model.files())
      for (const Tensor& tensor : file.tensors()) add_plan(tensor, report_.tensors[next++]);
    make_record();
  }

  std::uint64_t bytes() const {
    std::uint64_t total = 0;
    for (const TensorReport& entry : report_.tensors) total += entry.bytes_out;
    return total;
  }

  const pn::io::PackRecord& record() const { return record_; }
  bool rotates() const { return record_.hadamard_block != 0; }

  // Makes all headers, which refuse what the output cannot hold.
  void make_headers(Rewrite& rewrite) const {
    std::size_t first = 0;
    for (const ModelFile& file : job_.model.files()) {
      begin(file, first, rewrite);
      first += file.tensors().size();
    }
  }

  void run(Rewrite& rewrite) {
    std::size_t first = 0;
    for (const ModelFile& file : job_.model.files()) {
      quantize_file(file, first, rewrite);
      first += file.tensors().size();
    }
    rewrite.finish();
  }

  // "8 to pn3t, 1 to Q8_0, 2 from the donor".
  std::string counts() const {
    std::map<std::string, std::size_t> counts;
    std::size_t donated = 0;
    for (const TensorPlan& plan : plans_) {
      if (plan.treatment == Treatment::donor) ++donated;
      if (plan.treatment != Treatment::donor && plan.treatment != Treatment::keep) ++counts[plan.type.name];
    }
    std::vector<std::string> parts;
    for (const auto& [type, count] : counts) parts.push_back(fmt::format("{} to {}", count, type));
    if (donated != 0) parts.push_back(fmt::format("{} from the donor", donated));
    return fmt::format("{}", fmt::join(parts, ", "));
  }

 private:
  void add_plan(const Tensor& tensor, TensorReport& entry) {
    const TensorPlan plan = recipe_.plan(tensor);
    if (plan.treatment != Treatment::keep && job_.kind == FileKind::safetensors && types::dtype_of(plan.type).empty())
      throw Error(Fault::usage, job_.model.path(),
                  "cannot become " + plan.type.name + ": safetensors files do not have it (--format gguf)")
          .about("tensor " + tensor.name);
    const std::uint32_t rotation = types::is_pn(plan.type) ? recipe_.rotation_of(tensor.name) : 0;
    if (rotation != 0 && tensor.row_length() % rotation != 0)
      throw Error(Fault::usage, job_.model.path(),
                  fmt::format("its K = {} is not a multiple of --rotate {}", tensor.row_length(), rotation))
          .about("tensor " + tensor.name);
    entry.converted = plan.treatment != Treatment::keep;
    entry.fallback = plan.fallback;
    entry.type_out = plan.type.name;
    entry.bytes_out = entry.converted ? bytes_of(plan.type, tensor.elements) : tensor.bytes;
    if (!plan.reason.empty()) entry.reason = plan.reason;
    if (plan.treatment == Treatment::donor) entry.reason = "from the donor";
    if (!options_.mix.empty() && plan.rule != nullptr) entry.rule = rule_text(*plan.rule);
    plans_.push_back(plan);
  }

  void make_record() {
    const pn::io::PackRecord& input = job_.model.files().front().record();
    for (const TensorPlan& plan : plans_) {
      record_.pn = record_.pn || types::is_pn(plan.type);
      record_.p12 = record_.p12 || types::is_p12(plan.type);
    }
    if (record_.p12) {
      record_.rounded_from = input.rounded_from;
      if (job_.kind == FileKind::gguf) record_.p12_type_id = input.p12_type_id.value_or(options_.type_id);
    }
    if (record_.pn) {
      record_.weighted_search = recipe_.weighted_search();
      record_.hadamard_block = options_.rotate;
    }
    // A packed file without the header text of its original cannot give one; its own describes packed tensors.
    const auto& files = job_.model.files();
    const bool has_original = input.has_header || std::all_of(files.begin(), files.end(), [](const ModelFile& file) {
                                return file.record().first_key.empty();
                              });
    record_.has_header =
        (record_.pn || record_.p12) && job_.kind == FileKind::safetensors && job_.same_kind() && has_original;
  }

  pn::io::PackRecord record_of(const ModelFile& file, std::size_t first) const {
    pn::io::PackRecord record = record_;
    for (std::size_t i = 0; record.hadamard_block != 0 && i < file.tensors().size(); ++i) {
      const std::string& name = file.tensors()[i].name;
      if (types::is_pn(plans_[first + i].type) && recipe_.rotation_of(name) == 0) record.exclude(name);
    }
    if (record.has_header && &file == &job_.model.files().front())
      record.total_size = !file.record().first_key.empty() ? file.record().total_size : job_.model.odd_total_size();
    return record;
  }

  void begin(const ModelFile& file, std::size_t first, Rewrite& rewrite) const {
    std::vector<TensorType> planned;
    for (std::size_t i = 0; i < file.tensors().size(); ++i) planned.push_back(plans_[first + i].type);
    rewrite.begin(file, record_of(file, first), planned, true);
  }

  void quantize_file(const ModelFile& file, std::size_t first, Rewrite& rewrite) {
    begin(file, first, rewrite);
    for (const std::size_t i : file.layout->data_order) {
      const TensorPlan& plan = plans_[first + i];
      if (plan.treatment == Treatment::keep) {
        rewrite.copy(i);
      } else if (plan.treatment == Treatment::donor) {
        rewrite.copy_from(i, *plan.donor.file->file, *plan.donor.tensor);
      } else {
        quantize_tensor(file, i, plan, report_.tensors[first + i], rewrite);
      }
    }
    rewrite.end();
  }

  void quantize_tensor(const ModelFile& file, std::size_t i, const TensorPlan& plan, TensorReport& entry,
                       Rewrite& rewrite) {
    const Tensor& tensor = file.tensors()[i];
    const std::optional<Importance> importance = recipe_.importance_of(tensor);
    const auto quantizer = recipe_.conversion(tensor, plan.type, recipe_.rotation_of(tensor.name),
                                              recipe_.weighted_search(), importance ? &*importance : nullptr);
    const Outcome outcome = rewrite.convert(i, *quantizer);
    if (outcome.status != pn::Status::ok) throw conversion_error(file, tensor, *quantizer, outcome);
    entry.nrmse = outcome.error.nrmse();
    if (importance) entry.weighted_nrmse = outcome.weighted_error.nrmse();
    if (recipe_.has_importances() && !importance) entry.reason = "no importances";
  }

  const Options& options_;
  const Job& job_;
  Recipe& recipe_;
  Report& report_;
  std::vector<TensorPlan> plans_;
  pn::io::PackRecord record_;
};

}  // namespace

Report quantize(const Options& options) {
  const Job job(options, Recipe::files(options));
  require_quantizable(job.model);
  Recipe recipe(options);
  job.require_apart(recipe.identities());
  Report report = start_report(job.model);
  Quantization quantization(options, job, recipe, report);
  if (job.target) job.target->require_space(quantization.bytes());

  const std::uint64_t converted = report.converted();
  report.ok = !options.strict || (converted > 0 && report.fallbacks() == 0);
  if (report.ok) {
    Workers workers(options.threads);
    Progress progress("quantizing", job.model.tensor_bytes(), !options.quiet && !options.dry_run);
    const Engine engine{workers, progress};
    Rewrite rewrite(options, engine, job);
    if (options.dry_run) {  // tells the plan; the weights are not read
      quantization.make_headers(rewrite);
    } else if (converted == 0) {
      rewrite.copy_model(quantization.record());
    } else {
      quantization.run(rewrite);
    }
    recipe.require_unchanged();
    rewrite.commit();
  }
  if (converted == 0) {
    report.summary = fmt::format("nothing to quantize: 0 of {} tensors", report.tensors.size());
  } else {
    report.summary = fmt::format("{} {} of {} tensors ({}): {} -> {} bytes of tensors ({:.2f} bits per weight)",
                                 options.dry_run ? "would quantize" : "quantized", converted, report.tensors.size(),
                                 quantization.counts(), grouped(report.bytes_in()), grouped(report.bytes_out()),
                                 report.bits_per_weight());
  }
  for (const std::string& warning : recipe.warnings()) report.warnings.push_back(warning);
  if (options.rotate != 0 && !quantization.rotates())
    report.warnings.push_back("no tensor becomes PN: --rotate changes nothing");
  add_fate(options, report);
  return report;
}

}  // namespace pnpack
