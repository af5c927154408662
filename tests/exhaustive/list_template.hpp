// A block of weights of which any one, two or three can be made to need a place in the list; the packed bytes are put
// together field by field from the format's text.
#ifndef PN_TESTS_EXHAUSTIVE_LIST_TEMPLATE_HPP
#define PN_TESTS_EXHAUSTIVE_LIST_TEMPLATE_HPP

#include <string>

#include "../p12/testing.hpp"

namespace exhaustive {

class ListTemplate {
 public:
  ListTemplate() {
    bytes_.fill(0);
    bytes_[0] = low;
    for (int place = 0; place < 256; ++place) {
      // Even places at the bottom of the window, odd ones at its top: wherever three of them are taken out, the others
      // leave no other base as good.
      const int code = place % 2 == 0 ? 0 : 15;
      const auto sm = static_cast<unsigned>(place * 37 % 256);
      weights_[static_cast<std::size_t>(place)] = testing::weight_of(low + code, sm);
      set_code(bytes_, place, code);
      bytes_[static_cast<std::size_t>(136 + place)] = static_cast<std::uint8_t>(sm);
    }
  }

  // Packs, unpacks and validates with the given places, ascending, listed; what went wrong, or nothing.
  std::string check(const std::vector<int>& places) const {
    testing::Weights weights = weights_;
    testing::Bytes want = bytes_;
    want[1] = static_cast<std::uint8_t>(places.size());
    for (std::size_t slot = 0; slot < places.size(); ++slot) {
      const int place = places[slot];
      const auto at = static_cast<std::size_t>(place);
      const int exponent = outside[(at + slot) % 6];
      weights[at] = testing::weight_of(exponent, want[136 + at]);
      set_code(want, place, 0);
      want[2 + slot] = static_cast<std::uint8_t>(place);
      want[5 + slot] = static_cast<std::uint8_t>(exponent);
    }
    p12::Block392 block;
    const char* wrong = nullptr;
    if (p12::pack_block(weights.data(), block) != pn::Status::ok)
      wrong = "does not pack";
    else if (std::memcmp(&block, want.data(), 392) != 0)
      wrong = "packs to other bytes";
    else if (testing::unpacked(block) != weights)
      wrong = "unpacks to other weights";
    else if (p12::validate_block(block) != pn::Status::ok)
      wrong = "is not valid";
    for (std::size_t slot = 0; wrong == nullptr && slot < places.size(); ++slot)
      if (p12::unpack_element(block, want[2 + slot]) != weights[want[2 + slot]]) wrong = "has another element";
    if (wrong == nullptr) return {};
    std::string text = "a block with listed places";
    for (const int place : places) text += " " + std::to_string(place);
    return text + " " + wrong;
  }

 private:
  static constexpr int low = 100;
  static constexpr int outside[6] = {0, 99, 116, 255, 50, 200};

  static void set_code(testing::Bytes& bytes, int place, int code) {
    const int bit = second::first_bit(place);
    auto& byte = bytes[static_cast<std::size_t>(bit / 8)];
    byte = static_cast<std::uint8_t>((byte & (bit % 8 == 4 ? 0x0F : 0xF0)) | code << (bit % 8));
  }

  testing::Weights weights_;
  testing::Bytes bytes_;
};

}  // namespace exhaustive

#endif  // PN_TESTS_EXHAUSTIVE_LIST_TEMPLATE_HPP
