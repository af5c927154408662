// pn: build settings shared by every core header. Defines only macros that begin with PN_.
#ifndef PN_CONFIG_HPP
#define PN_CONFIG_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>

#if !defined(__cplusplus) || __cplusplus < 201703L
#if !defined(_MSVC_LANG) || _MSVC_LANG < 201703L
#error "pn needs C++17 or newer"
#endif
#endif

// Host and device: the core is the specification in code for both.
#if defined(__CUDACC__)
#define PN_HOST_DEVICE __host__ __device__
#else
#define PN_HOST_DEVICE
#endif

#if defined(__has_builtin)
#if __has_builtin(__builtin_bit_cast) && !defined(__CUDACC__)
#define PN_HAS_BIT_CAST 1
#endif
#endif
#if !defined(PN_HAS_BIT_CAST) && defined(_MSC_VER) && _MSC_VER >= 1927 && !defined(__CUDACC__)
#define PN_HAS_BIT_CAST 1
#endif

// constexpr wherever the compiler can reinterpret a float as bits in a constant expression (g++ 11, clang++ 9,
// MSVC 19.27 or newer), plain inline elsewhere.
#if defined(PN_HAS_BIT_CAST)
#define PN_CONSTEXPR_BITS constexpr
#else
#define PN_CONSTEXPR_BITS inline
#endif

// A function of its own, whatever the compiler would do.
#if defined(_MSC_VER) && !defined(__clang__)
#define PN_NOINLINE __declspec(noinline)
#else
#define PN_NOINLINE __attribute__((noinline))
#endif

namespace pn::detail {

// The bits of `from` as another type of the same size (std::bit_cast, which C++17 lacks).
template <class To, class From>
PN_HOST_DEVICE PN_CONSTEXPR_BITS To bit_cast(From from) noexcept {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs types of one size");
#if defined(PN_HAS_BIT_CAST)
  return __builtin_bit_cast(To, from);
#else
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
#endif
}

// Little-endian loads and stores from any address, on any host.
PN_HOST_DEVICE constexpr std::uint16_t load_le16(const std::uint8_t* p) noexcept {
  return static_cast<std::uint16_t>(p[0] | (p[1] << 8));
}
PN_HOST_DEVICE constexpr std::uint32_t load_le32(const std::uint8_t* p) noexcept {
  return static_cast<std::uint32_t>(p[0]) | (static_cast<std::uint32_t>(p[1]) << 8) |
         (static_cast<std::uint32_t>(p[2]) << 16) | (static_cast<std::uint32_t>(p[3]) << 24);
}
PN_HOST_DEVICE constexpr void store_le16(std::uint8_t* p, std::uint16_t v) noexcept {
  p[0] = static_cast<std::uint8_t>(v & 0xFFu);
  p[1] = static_cast<std::uint8_t>(v >> 8);
}
PN_HOST_DEVICE constexpr void store_le32(std::uint8_t* p, std::uint32_t v) noexcept {
  p[0] = static_cast<std::uint8_t>(v & 0xFFu);
  p[1] = static_cast<std::uint8_t>((v >> 8) & 0xFFu);
  p[2] = static_cast<std::uint8_t>((v >> 16) & 0xFFu);
  p[3] = static_cast<std::uint8_t>(v >> 24);
}

}  // namespace pn::detail

#endif  // PN_CONFIG_HPP
