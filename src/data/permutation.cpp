// The Feistel network behind every shuffle.
#include "lockstep/data/permutation.h"

#include <algorithm>
#include <bit>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep::data {

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch) : size_(size) {
  if (size < 1 || size > (std::int64_t{1} << 62))
    throw UsageError("a permutation of {} elements was asked", size);
  const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(size - 1)));
  half_bits_ = std::max(1, (bits + 1) / 2);
  const Random random({seed, purpose_of("permutation"), epoch, 0});
  for (std::size_t round = 0; round < rounds; ++round) {
    const auto words = random.block(round);
    round_keys_[round] = (std::uint64_t{words[0]} << 32) | words[1];
  }
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto value = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = value >> half_bits_, right = value & mask;
    for (const std::uint64_t key : round_keys_) {
      const std::uint64_t mixed = left ^ (mix_bits(right ^ key) & mask);
      left = right;
      right = mixed;
    }
    value = (left << half_bits_) | right;
  } while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

}  // namespace lockstep::data
