#include "stream.hpp"

#include <algorithm>
#include <vector>

namespace pnpack {
namespace {

// A grain is what one worker converts at a time. Its size does not depend on the number of workers, so sums over
// grains do not either.
constexpr std::size_t grain_bytes = std::size_t{1} << 19;
constexpr std::size_t piece_bytes = std::size_t{1} << 24;  // at most this much in or out at a time

}  // namespace

Outcome stream(const Engine& engine, const pn::io::InputFile& file, const pn::io::Tensor& tensor,
               const Conversion& conversion, const Sink& sink) {
  const std::size_t unit_in = conversion.unit_bytes_in();
  const std::size_t unit_out = conversion.unit_bytes_out();
  const std::size_t grain_units = std::max<std::size_t>(1, grain_bytes / std::max(unit_in, unit_out));
  const std::size_t most_grains = std::max<std::size_t>(1, piece_bytes / (grain_units * std::max(unit_in, unit_out)));
  const std::size_t piece_units = grain_units * std::min(most_grains, 2 * engine.workers.size());

  const std::uint64_t units = tensor.elements / conversion.unit_elements();
  std::vector<std::uint8_t> scratch;
  std::vector<std::uint8_t> out;
  std::vector<Outcome> outcomes;
  Outcome total;
  for (std::uint64_t start = 0; start < units && total.status == pn::Status::ok; start += piece_units) {
    const std::size_t count = static_cast<std::size_t>(std::min<std::uint64_t>(piece_units, units - start));
    const std::size_t grains = (count + grain_units - 1) / grain_units;
    const std::uint8_t* in = file.read(tensor.offset + start * unit_in, count * unit_in, scratch);
    out.resize(count * unit_out);
    outcomes.assign(grains, {});
    engine.workers.for_each(grains, [&](std::size_t g) {
      const std::size_t first = g * grain_units;
      outcomes[g] = conversion.run(in + first * unit_in, start + first, std::min(grain_units, count - first),
                                   out.data() + first * unit_out);
    });
    for (std::size_t g = 0; g < grains; ++g)
      total.append(outcomes[g], (start + g * grain_units) * conversion.unit_elements());
    std::size_t good = count;
    if (total.status != pn::Status::ok)
      good = static_cast<std::size_t>(total.element / conversion.unit_elements() - start);
    if (sink) sink(out.data(), good * unit_out, total);
    file.release(tensor.offset + start * unit_in, count * unit_in);
    engine.progress.add(count * unit_in);
  }
  return total;
}

void stream_bytes(const Engine& engine, const pn::io::InputFile& file, std::uint64_t offset, std::uint64_t length,
                  const std::function<void(const std::uint8_t* bytes, std::size_t length)>& sink, std::size_t unit) {
  const std::size_t most = piece_bytes / 4 / unit * unit;
  std::vector<std::uint8_t> scratch;
  while (length > 0) {
    const std::size_t piece = static_cast<std::size_t>(std::min<std::uint64_t>(length, most));
    sink(file.read(offset, piece, scratch), piece);
    file.release(offset, piece);
    engine.progress.add(piece);
    offset += piece;
    length -= piece;
  }
}

}  // namespace pnpack
