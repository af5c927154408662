// Weights and importances that a fast quantizer gets wrong first: weights halfway between two codes, scales whose
// errors are equal or differ in the last bits of a sum, importances that no single precision holds.
#ifndef PN_TESTS_CPU_RECIPES_HPP
#define PN_TESTS_CPU_RECIPES_HPP

#include "testing.hpp"

namespace testing {

inline float steps_from(float value, int steps) {
  for (; steps > 0; --steps) value = std::nextafter(value, HUGE_VALF);
  for (; steps < 0; ++steps) value = std::nextafter(value, -HUGE_VALF);
  return value;
}

// The scale that candidate i of a block with this amax is.
inline double candidate(int i, double amax, int z) {
  return half_value(pn::double_to_half((50 + 2 * i) / 100.0 * amax / z));
}

enum class Recipe {
  trained,
  fields,
  halfway,
  quantized,
  coarse,
  constant,
  outlier,
  zeros,
  subnormal,
  edge,
  integers,
  tied_scales,
  exact_candidates,
  equal_extremes,
  one_sided,
  any_exponent,
  count
};

// One block of n weights; z is the zero point of the type.
inline void random_block(Random& random, Recipe recipe, int n, int z, float* w) {
  const double size = std::ldexp(1 + random.uniform(), random.between(-14, 8));
  const auto any = [&] { return random.below(static_cast<std::size_t>(n)); };
  const auto sign = [&] { return random.coin() ? 1.0 : -1.0; };
  const auto each = [&](auto&& value) {
    for (int e = 0; e < n; ++e) w[e] = static_cast<float>(value());
  };
  switch (recipe) {
    case Recipe::trained: each([&] { return 0.02 * size * random.gauss(); }); break;
    case Recipe::fields: {  // where exponents lie and how far apart, how many bits a mantissa has, how many zeros
      const int top = random.coin() ? random.between(100, 147) : random.between(0, 254);
      const int spread = random.coin() ? random.between(0, 3) : random.between(0, 40);
      const std::uint32_t mantissa = 0x7FFFFFu << random.between(random.coin() ? 0 : 16, 23) & 0x7FFFFFu;
      const std::size_t zeros = std::size_t{1} << random.between(0, 6);
      for (int e = 0; e < n; ++e) {
        const std::uint32_t exponent = static_cast<std::uint32_t>(std::max(0, top - random.between(0, spread)));
        const bool zero = zeros > 8 && random.below(zeros) > 2;
        w[e] = float_of((random.next32() & (mantissa | 0x80000000u)) | exponent << 23);
        if (zero) w[e] = 0;
      }
      break;
    }
    case Recipe::halfway: {  // exactly between two codes of a candidate, or a step away from there
      const double s = candidate(random.between(0, 35), size, z);
      const int steps = random.between(0, 2);
      for (int e = 0; e < n; ++e) {
        double value = s * (random.between(-z - 1, z) + 0.5);
        if (std::fabs(value) > size) value = 0.5 * s;
        w[e] = steps_from(static_cast<float>(value), random.between(-steps, steps));
      }
      w[any()] = static_cast<float>(sign() * size);
      break;
    }
    case Recipe::quantized: {  // what a block decodes to: one candidate may fit without any error
      const double s = sign() * half_value(static_cast<unsigned>(random.between(1, 0x7BFF)));
      const int low = random.coin() ? 0 : random.between(0, z);
      each([&] { return s * (random.between(low, 2 * z - 1 - (low > 0 && random.coin() ? low - 1 : 0)) - z); });
      if (random.coin()) w[any()] = static_cast<float>(-s * z);
      break;
    }
    case Recipe::coarse: {
      each([&] { return size * random.gauss(); });
      const Element element = random.coin() ? Element::f16 : Element::bf16;
      for (int e = 0; e < n; ++e) w[e] = value_of(element, bits_as(element, w[e]));
      break;
    }
    case Recipe::constant: {  // one value, alternating signs, two values, one that differs
      const int how = random.between(0, 3);
      const double first = sign() * size, second = how == 1 ? -first : sign() * size * random.uniform();
      for (int e = 0; e < n; ++e) w[e] = static_cast<float>(how != 0 && (how == 3 || e % 2 == 1) ? second : first);
      if (how == 3) w[any()] = static_cast<float>(first);
      break;
    }
    case Recipe::outlier:
      each([&] { return 0.01 * random.gauss(); });
      w[any()] = static_cast<float>(sign() * (random.coin() ? 1000 : size));
      break;
    case Recipe::zeros:
      each([&] { return sign() * 0.0; });
      for (int i = random.between(0, 3); i > 0; --i) w[any()] = static_cast<float>(size * random.gauss());
      break;
    case Recipe::subnormal: {
      const int shift = random.between(0, 23);
      for (int e = 0; e < n; ++e) w[e] = float_of((random.next32() & 0x807FFFFFu) >> shift << (shift / 2));
      if (random.coin()) w[any()] = static_cast<float>(sign() * size * 1e-6);
      break;
    }
    case Recipe::edge: {  // amax at the points where a candidate becomes zero, normal, infinite
      const double m = (50 + 2 * random.between(0, 35)) / 100.0;
      const double edges[] = {0x1p-25 * z / m, 0x1.8p-24 * z / m, 0x1p-14 * z / m, 65504.0 * z / m, 65520.0 * z / m};
      const float amax = steps_from(static_cast<float>(edges[random.below(5)]), random.between(-2, 2));
      each([&] { return (2 * random.uniform() - 1) * static_cast<double>(amax); });
      w[any()] = random.coin() ? amax : -amax;
      break;
    }
    case Recipe::integers: {
      const int range = random.between(1, 300);
      each([&] { return random.between(-range, range); });
      break;
    }
    case Recipe::tied_scales: {  // small multiples of fp16's smallest, and noise that rounds the sums
      const int range = random.between(2, 6 * z);
      const bool noise = random.coin();
      each([&] { return noise ? 0x1p-27 * (2 * random.uniform() - 1) : sign() * 0.0; });
      for (int i = random.between(1, noise ? n / 4 : 4); i > 0; --i)
        w[any()] = static_cast<float>(std::ldexp(random.between(-range, range), -24 - random.between(0, 1)));
      break;
    }
    case Recipe::exact_candidates: {
      // amax = 100 * z * 2^j: every candidate is exactly (50 + 2i) * 2^j, and few distinct weights on their common
      // lattice give errors that are equal but for the order in which they are added up.
      const int j = random.between(-12, 4);
      const int top = 100 * z;
      const int step = 1 << random.between(0, 5);
      int values[4];
      for (int& value : values) value = random.between(-top / step, top / step) * step;
      each([&] { return std::ldexp(values[random.below(4)], j); });
      if (random.coin()) w[any()] = static_cast<float>(std::ldexp(random.uniform(), j));
      w[any()] = static_cast<float>(std::ldexp(sign() * top, j));
      break;
    }
    case Recipe::equal_extremes:
      each([&] { return (2 * random.uniform() - 1) * size; });
      w[0] = static_cast<float>(size);
      w[random.between(1, n - 1)] = static_cast<float>(-size);
      if (random.coin()) std::swap(w[0], w[n - 1]);
      break;
    case Recipe::one_sided: {
      const double side = sign();
      const double least = random.coin() ? 0 : size * random.uniform();
      each([&] { return side * (least + size * std::fabs(random.gauss())); });
      break;
    }
    case Recipe::any_exponent:
      for (int e = 0; e < n; ++e)
        w[e] = float_of((random.next32() & 0x807FFFFFu) | static_cast<std::uint32_t>(random.between(90, 145)) << 23);
      break;
    case Recipe::count: break;
  }
}

inline void random_block(Random& random, int n, int z, float* w) {
  random_block(random, static_cast<Recipe>(random.below(static_cast<std::size_t>(Recipe::count))), n, z, w);
}

// One importance for each of n weights.
inline void random_importance(Random& random, int n, const float* w, double* g) {
  const int how = random.between(0, 12);
  const double level = std::ldexp(1 + random.uniform(), random.between(-1000, 1000));
  const int small = random.between(-150, -60);
  for (int e = 0; e < n; ++e) {
    switch (how) {
      case 0: g[e] = random.uniform(); break;
      case 1: g[e] = random.below(8) == 0 ? random.uniform() : 0.0; break;
      case 2: g[e] = double_of(random.next() >> 1 & 0x7FDFFFFFFFFFFFFFu); break;  // any finite double
      case 3: g[e] = static_cast<double>(random.below(4)) * 5e-324; break;        // all errors vanish
      case 4: g[e] = random.coin() ? 0.0 : -0.0; break;
      case 5: g[e] = random.coin() ? 1e300 : 5e-324; break;
      case 6: g[e] = std::ldexp(random.uniform(), random.between(-200, 200)); break;
      case 7: g[e] = random.coin() ? 1.7e308 : 0.0; break;  // the sums become infinite
      case 8: g[e] = w[e] == 0 ? 1e300 : 1e-300; break;     // what weighs most has no error under any scale
      case 9: g[e] = std::pow(random.gauss(), 2); break;
      case 12: g[e] = w[e] == 0 ? 1.0 : std::ldexp(1 + random.uniform(), small); break;  // errors near fp32's smallest
      case 10: g[e] = level; break;  // no column matters more, but each product rounds
      default: g[e] = level * (1 + static_cast<double>(random.below(3)) * 0x1p-52); break;
    }
  }
  if (how == 1 && random.coin()) {  // a single column matters
    std::fill(g, g + n, 0.0);
    g[random.below(static_cast<std::size_t>(n))] = random.coin() ? 5e-324 : 1e300;
  }
}

}  // namespace testing

#endif  // PN_TESTS_CPU_RECIPES_HPP
