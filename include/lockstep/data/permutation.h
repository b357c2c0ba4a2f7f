// Permutation: a shuffle of [0, size) that is a pure function of (seed, epoch, index).
//
// A Feistel network over the smallest even number of bits that holds the range (Luby and Rackoff 1988), with
// cycle walking for sizes that are not a power of four (Black and Rogaway, "Ciphers with arbitrary finite
// domains", CT-RSA 2002): a value outside the range is permuted again until it falls inside, under four
// rounds on average. Nothing is stored, any index can be asked at any time.
#pragma once

#include <array>
#include <cstdint>

namespace lockstep::data {

class Permutation {
 public:
  /// Throws UsageError unless 1 <= size <= 2^62.
  Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t epoch);

  std::int64_t size() const { return size_; }
  /// Where `index` in [0, size) goes; each place is taken once. Not checked.
  std::int64_t operator()(std::int64_t index) const;

 private:
  static constexpr int rounds = 8;

  std::int64_t size_;
  int half_bits_;
  std::array<std::uint64_t, rounds> round_keys_;
};

}  // namespace lockstep::data
