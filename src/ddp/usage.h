// Usage: which parameters and statistics each shard of a rank wrote, one bit each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::ddp {

class Usage {
 public:
  using Word = std::uint64_t;

  Usage(int shards, std::size_t items)
      : items_(items), words_((items + 63) / 64), bits_(static_cast<std::size_t>(shards) * words_) {}

  std::size_t items() const { return items_; }
  std::size_t words() const { return words_; }
  void clear() { bits_.assign(bits_.size(), 0); }
  void clear(int shard) {
    for (Word& word : row(shard)) word = 0;
  }
  bool test(int shard, std::size_t item) const { return test(row(shard), item); }
  void set(int shard, std::size_t item) { row(shard)[item / 64] |= bit(item); }

  static bool test(std::span<const Word> bits, std::size_t item) { return bits[item / 64] & bit(item); }

  std::span<const Word> row(int shard) const {
    return {bits_.data() + static_cast<std::size_t>(shard) * words_, words_};
  }

 private:
  static Word bit(std::size_t item) { return Word{1} << (item % 64); }
  std::span<Word> row(int shard) { return {bits_.data() + static_cast<std::size_t>(shard) * words_, words_}; }

  std::size_t items_;
  std::size_t words_;
  std::vector<Word> bits_;  // [shards][words]
};

}  // namespace lockstep::ddp
