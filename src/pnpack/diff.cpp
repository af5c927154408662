// diff: in what do two models differ? Tensors by name: type, shape, and how many weights.
#include <fmt/format.h>

#include <numeric>

#include "comparison.hpp"
#include "rewrite.hpp"
#include "verbs.hpp"

namespace pnpack {

using pn::io::Tensor;
using pn::io::TensorType;
namespace types = pn::io::types;

namespace {

// To weights that can be compared one by one; null for types that already are, or that are not known here.
std::unique_ptr<Conversion> decoder_of(const TensorType& type) {
  if (types::is_p12(type)) return make_p12_unpacker(type);
  if (types::is_pn(type)) return make_pn_decoder(type, types::f32(), 0);
  return nullptr;
}

// Counts the weights in which two tensors differ, both taken as what their decoders give; where a block is not valid,
// nothing is counted.
void count_weights(const Engine& engine, const TensorIn& a, const TensorIn& b, TensorReport& report) {
  const Tensor& tensor = *a.tensor;
  const auto decode_a = decoder_of(tensor.type);
  const auto decode_b = decoder_of(b.tensor->type);
  const TensorType& type = decode_a ? decode_a->to() : tensor.type;
  Comparison comparison(b, decode_b.get(), type.block_bytes);
  bool valid = true;
  if (decode_a) {
    const auto sink = [&](const std::uint8_t* bytes, std::size_t length, const Outcome&) {
      comparison.add(bytes, length);
    };
    valid = stream(engine, *a.file->file, tensor, *decode_a, sink).status == pn::Status::ok;
  } else {
    stream_bytes(
        engine, *a.file->file, tensor.offset, tensor.bytes,
        [&](const std::uint8_t* bytes, std::size_t length) { comparison.add(bytes, length); },
        std::lcm<std::size_t>(type.block_bytes, decode_b ? decode_b->unit_bytes_out() : 1));
  }
  if (!valid || comparison.stopped()) return;
  report.different = comparison.differing_units();
  if (!comparison.difference()) return;
  const std::uint64_t unit = *comparison.difference() / type.block_bytes;
  const bool blocks = type.block != 1;
  const std::string place = blocks ? block_text(tensor, unit, type.block) : element_text(tensor, unit);
  const std::uint64_t element = unit * type.block;
  const std::uint64_t offset = tensor.offset + element / tensor.type.block * tensor.type.block_bytes;
  const std::uint64_t all = tensor.elements / type.block;
  const std::string text = fmt::format("{} of {} {} differ, the first is {}", grouped(*report.different), grouped(all),
                                       blocks ? "blocks" : "weights", place);
  if (blocks) {
    differ(report, text, {}, unit, offset);
  } else {
    differ(report, text, unit, {}, offset);
  }
}

void compare(const Engine& engine, const TensorIn& a, const TensorIn& b, TensorReport& report) {
  const TensorType& here = a.tensor->type;
  const TensorType& there = b.tensor->type;
  report.type_out = there.name;
  report.bytes_out = b.tensor->bytes;
  report.good = true;
  if (a.tensor->shape != b.tensor->shape) return differ(report, "has another shape in the second");
  if (here == there) {
    const std::uint32_t rotation = a.file->record().rotation_of(a.tensor->name);
    const std::uint32_t other = b.file->record().rotation_of(b.tensor->name);
    // Blocks that are rotated in different ways are different weights, even where their bytes are the same.
    if (types::is_pn(here) && rotation != other)
      return differ(report,
                    fmt::format("is rotated by {} in the first and by {} in the second (0: not)", rotation, other));
    compare_bytes(engine, a, b, report);
    if (!*report.good && here.known()) count_weights(engine, a, b, report);
    return;
  }
  const bool same_weights =
      (types::is_p12(here) && there == types::bf16()) || (types::is_p12(there) && here == types::bf16());
  if (same_weights && a.tensor->elements != 0) count_weights(engine, a, b, report);
  const std::string types = fmt::format("is {} in the first and {} in the second", here.name, there.name);
  if (!*report.good) {
    report.reason = types + "; " + *report.reason;
  } else {
    differ(report, types + (report.different ? "; all weights are equal" : ""));
  }
}

}  // namespace

Report diff(const Options& options) {
  const pn::io::Model first(options.input);
  const pn::io::Model second(options.second);
  Workers workers(options.threads);
  Progress progress("comparing", first.tensor_bytes(), !options.quiet);
  const Engine engine{workers, progress};

  Report report = start_report(first);
  compare_tensors(
      first, second, {"is only in the first", "is only in the second"},
      [&](const TensorIn& a, const TensorIn& b, TensorReport& entry) { compare(engine, a, b, entry); }, report);
  first.require_unchanged();
  second.require_unchanged();

  report.warnings = compare_keys(first, second, "the second");
  const pn::io::PackRecord& a = first.files().front().record();
  const pn::io::PackRecord& b = second.files().front().record();
  if (a.pn && b.pn && a.weighted_search != b.weighted_search)
    report.warnings.push_back("the key pn.search has another value in the second");
  if (a.p12 && b.p12 && a.rounded_from != b.rounded_from)
    report.warnings.push_back("the key p12.rounded_from has another value in the second");
  const std::uint64_t bad = report.bad();
  const std::size_t keys = report.warnings.size();
  report.ok = bad == 0 && keys == 0;
  report.summary = report.ok ? fmt::format("no difference: {} tensors", report.tensors.size())
                             : fmt::format("{} of {} tensors and {} keys differ", bad, report.tensors.size(), keys);
  return report;
}

}  // namespace pnpack
