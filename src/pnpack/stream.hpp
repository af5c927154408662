// Runs the bytes of a tensor through a conversion in pieces of bounded size, on all workers.
#pragma once

#include <cstdint>
#include <functional>

#include "conversion.hpp"
#include "io/input_file.hpp"
#include "io/tensor.hpp"
#include "progress.hpp"
#include "workers.hpp"

namespace pnpack {

// What a stream needs beside the tensor.
struct Engine {
  Workers& workers;
  Progress& progress;
};

// Receives the output in order, piece by piece, with the outcome so far; where a conversion failed, the units before
// the one that failed and nothing after.
using Sink = std::function<void(const std::uint8_t* bytes, std::size_t length, const Outcome& so_far)>;

// Converts all of `tensor`; its type is conversion.from(). Stops after the piece with the first failure; its place is
// the same whatever the number of workers, and so are the sums of the outcome.
Outcome stream(const Engine& engine, const pn::io::InputFile& file, const pn::io::Tensor& tensor,
               const Conversion& conversion, const Sink& sink);

// Hands `length` bytes from `offset` on as they are, in pieces of whole units of `unit` bytes.
void stream_bytes(const Engine& engine, const pn::io::InputFile& file, std::uint64_t offset, std::uint64_t length,
                  const std::function<void(const std::uint8_t* bytes, std::size_t length)>& sink, std::size_t unit = 1);

}  // namespace pnpack
