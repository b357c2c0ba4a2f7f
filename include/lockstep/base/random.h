// Counter-based random numbers: every draw is a pure function of (seed, purpose, step, shard, element).
// Philox4x32-10: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace lockstep {

/// A 64-bit identifier of the purpose of random numbers ("dropout:transformer.h.0", "permutation"): FNV-1a of
/// the text.
constexpr std::uint64_t purpose_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

/// A bijective 64-bit mixer (the finaliser of SplitMix64).
constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// A hash of a tuple of numbers (bools, enums), for tables with such keys.
template <class... Number>
constexpr std::size_t hash_of(Number... numbers) {
  std::uint64_t hash = 0;
  ((hash = mix_bits(hash + static_cast<std::uint64_t>(numbers) + 0x9e3779b97f4a7c15u)), ...);
  return hash;
}

/// Everything that a stream of random numbers depends on.
struct RandomKey {
  std::uint64_t seed = 0;     ///< of the run
  std::uint64_t purpose = 0;  ///< purpose_of("...")
  std::uint64_t step = 0;     ///< finished updates
  std::uint32_t shard = 0;    ///< which shard of the global batch
};

/// The stream of one key. Stateless: any element can be drawn at any time, on any thread, in any order.
/// Elements below 2^34 are distinct draws.
class Random {
 public:
  /// The numbers of a key.
  constexpr explicit Random(const RandomKey& key)
      : key_(mix_bits(key.seed ^ mix_bits(key.purpose + 0x9e3779b97f4a7c15u))),
        step_(key.step),
        shard_(key.shard) {}

  /// The stream of another step.
  constexpr Random at_step(std::uint64_t step) const {
    Random other = *this;
    other.step_ = step;
    return other;
  }

  /// The stream of the shard that is so many further on.
  constexpr Random shards_on(std::uint32_t shards) const {
    Random other = *this;
    other.shard_ += shards;
    return other;
  }

  /// Four independent 32-bit words: elements 4 * index .. 4 * index + 3.
  constexpr std::array<std::uint32_t, 4> block(std::uint64_t index) const {
    std::uint32_t c0 = static_cast<std::uint32_t>(index), c1 = shard_;
    std::uint32_t c2 = static_cast<std::uint32_t>(step_), c3 = static_cast<std::uint32_t>(step_ >> 32);
    std::uint32_t k0 = static_cast<std::uint32_t>(key_), k1 = static_cast<std::uint32_t>(key_ >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
      c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
      c1 = static_cast<std::uint32_t>(p1);
      c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
      c3 = static_cast<std::uint32_t>(p0);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return {c0, c1, c2, c3};
  }

  /// 32 random bits for an element.
  constexpr std::uint32_t bits(std::uint64_t element) const { return block(element / 4)[element % 4]; }

  /// Uniform in [0, 1): 24 bits, exact in float.
  constexpr float uniform(std::uint64_t element) const { return to_uniform(bits(element)); }
  /// In [0, 1).
  static constexpr float to_uniform(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

  /// Uniform integer in [0, bound), bound > 0, by multiplication (bias below bound / 2^32).
  constexpr std::uint32_t below(std::uint64_t element, std::uint32_t bound) const {
    return static_cast<std::uint32_t>((std::uint64_t{bits(element)} * bound) >> 32);
  }

  /// Standard normal (Box-Muller on the two halves of the element's block pair): a square root of -2 log(u)
  /// times the cosine of an angle.
  float normal(std::uint64_t element) const {
    const auto [u, angle] = normal_terms(element);
    return static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(angle));
  }
  /// What normal() computes with.
  struct NormalTerms {
    double u = 0;      ///< uniform in (0, 1]
    double angle = 0;  ///< uniform in [0, 2 pi)
  };
  /// The terms of an element, for devices with functions of their own.
  constexpr NormalTerms normal_terms(std::uint64_t element) const {
    const auto words = block(element / 2);
    const bool second = element % 2 == 1;
    return {(static_cast<double>(second ? words[2] : words[0]) + 1.0) * 0x1p-32,
            6.283185307179586 * ((second ? words[3] : words[1]) * 0x1p-32)};
  }

 private:
  std::uint64_t key_;
  std::uint64_t step_;
  std::uint32_t shard_;
};

}  // namespace lockstep
