// pn: the status that every core function of pn:: and p12:: returns instead of throwing.
#ifndef PN_STATUS_HPP
#define PN_STATUS_HPP

#include <pn/config.hpp>

namespace pn {

// Numbers are stable: a new reason gets a new number at the end of its group.
// clang-format off
enum class [[nodiscard]] Status : std::uint8_t {
  ok = 0,

  // Arguments and input values.
  bad_length = 1,      // the number of weights is not a multiple of the block
  not_finite = 2,      // the input holds a NaN or an infinity
  scale_overflow = 3,  // every candidate scale of a block is beyond fp16's 65504
  bad_importance = 4,  // an importance is negative, NaN or infinite

  // Arguments of the compiled kernels (cpu.hpp), 5 to 15; the core never returns these.
  isa_not_available = 5,  // this processor or this build does not have the instruction set
  too_many_tokens = 6,    // more than 16 tokens in a call
  misaligned = 7,         // a workspace is not aligned to 64 bytes
  not_prepared = 8,       // the activations were not prepared for this multiply
  out_of_range = 9,       // an id is not one of a row
  bad_rank = 10,          // a low-rank add-on: its rank is 0 or above 256, or its elements are neither f32 nor bf16

  // A PN block that is not valid.
  scale_not_finite = 16,   // d is a NaN or an infinity
  reserved_bits_set = 17,  // pn3t: bit 15 or bit 31 of a word is set

  // A block of BF16 weights that BF16_P12 cannot hold.
  too_many_listed = 32,  // every base leaves more than 3 weights outside its 16 exponents

  // A BF16_P12 block that is not the canonical packed form of any weights.
  base_out_of_range = 48,          // base > 240
  listed_count_out_of_range = 49,  // n > 3
  positions_not_ascending = 50,    // listed places are not strictly ascending
  unused_slot_not_zero = 51,       // a place or an exponent beyond n is not 0
  listed_code_not_zero = 52,       // the code of a listed weight is not 0
  listed_exponent_in_range = 53,   // a listed exponent lies in [base, base + 15]
  base_not_canonical = 54,         // another base lists fewer weights, or as many with a larger base
};
// clang-format on

// One sentence in English without a final stop; never null.
PN_HOST_DEVICE constexpr const char* status_text(Status status) noexcept {
  switch (status) {
    case Status::ok: return "ok";
    case Status::bad_length: return "the number of weights is not a multiple of the block";
    case Status::not_finite: return "the value is a NaN or an infinity";
    case Status::scale_overflow: return "the weights are too large: every candidate scale overflows fp16";
    case Status::bad_importance: return "the importance is negative, a NaN or an infinity";
    case Status::isa_not_available: return "this processor or this build does not have the instruction set";
    case Status::too_many_tokens: return "more than 16 tokens in a call";
    case Status::misaligned: return "the workspace is not aligned to 64 bytes";
    case Status::not_prepared: return "the activations were not prepared for this multiply";
    case Status::out_of_range: return "the id is not one of a row";
    case Status::bad_rank: return "the rank is 0 or above 256, or the elements are neither f32 nor bf16";
    case Status::scale_not_finite: return "the scale d is a NaN or an infinity";
    case Status::reserved_bits_set: return "a reserved bit (15 or 31 of a word) is set";
    case Status::too_many_listed: return "more than 3 weights lie outside the best 16 exponents";
    case Status::base_out_of_range: return "the base exponent is larger than 240";
    case Status::listed_count_out_of_range: return "the number of listed weights is larger than 3";
    case Status::positions_not_ascending: return "the places of listed weights are not strictly ascending";
    case Status::unused_slot_not_zero: return "an unused slot of the list is not 0";
    case Status::listed_code_not_zero: return "the code of a listed weight is not 0";
    case Status::listed_exponent_in_range: return "a listed exponent lies in [base, base + 15]";
    case Status::base_not_canonical: return "the base exponent is not the canonical one";
  }
  return "unknown status";
}

}  // namespace pn

#endif  // PN_STATUS_HPP
