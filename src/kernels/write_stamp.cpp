#include "kernels/write_stamp.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

namespace lockstep::kernels {
namespace {

using Address = std::uintptr_t;

/// All memory that is watched.
class Watched {
 public:
  static Watched& all() {
    static Watched watched;
    return watched;
  }

  void add(const Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    const auto at = ranges_.try_emplace(address_of(tensor)).first;
    at->second.bytes = std::max(at->second.bytes, tensor.bytes());
    ++at->second.watchers;
    any_ = true;
    const auto overlap = [](auto left, auto right) {
      return left->first + left->second.bytes > right->first;
    };
    overlaps_ = overlaps_ || (at != ranges_.begin() && overlap(std::prev(at), at)) ||
                (std::next(at) != ranges_.end() && overlap(at, std::next(at)));
  }
  void remove(Address address) {
    const std::lock_guard lock(mutex_);
    const auto found = ranges_.find(address);
    if (--found->second.watchers == 0) ranges_.erase(found);
    any_ = !ranges_.empty();
    overlaps_ = overlaps_ && any_;
  }
  std::uint64_t last(Address address) {
    const std::lock_guard lock(mutex_);
    return ranges_.at(address).stamp;
  }

  /// Whether to stamp at all, without the lock.
  bool any() const { return any_; }
  /// stamp(write) calls write(tensor) for what one operation has written.
  template <class Stamp>
  void stamp(const Stamp& stamp_all) {
    const std::lock_guard lock(mutex_);
    ++operations_;
    stamp_all([this](const Tensor& tensor) {
      const Address first = address_of(tensor), end = first + tensor.bytes();
      auto range = overlaps_ ? ranges_.begin() : ranges_.upper_bound(first);
      if (range != ranges_.begin()) --range;
      for (; range != ranges_.end() && range->first < end; ++range) {
        if (range->first + range->second.bytes > first) range->second.stamp = operations_;
      }
    });
  }

 private:
  struct Range {
    std::size_t bytes = 0;
    int watchers = 0;
    std::uint64_t stamp = 0;
  };
  static Address address_of(const Tensor& tensor) { return reinterpret_cast<Address>(tensor.raw()); }

  std::mutex mutex_;
  std::atomic<bool> any_ = false;
  std::map<Address, Range> ranges_;
  bool overlaps_ = false;  // some have: memory that was freed may be watched still
  std::uint64_t operations_ = 0;
};

}  // namespace

WriteStamp::WriteStamp(const Tensor& tensor) : address_(tensor.raw()) {
  if (address_) Watched::all().add(tensor);
}

WriteStamp::~WriteStamp() {
  if (address_) Watched::all().remove(reinterpret_cast<Address>(address_));
}

WriteStamp::WriteStamp(WriteStamp&& other) noexcept : address_(std::exchange(other.address_, nullptr)) {}

WriteStamp& WriteStamp::operator=(WriteStamp&& other) noexcept {
  std::swap(address_, other.address_);
  return *this;
}

std::uint64_t WriteStamp::last() const {
  return address_ ? Watched::all().last(reinterpret_cast<Address>(address_)) : 0;
}

void stamp_writes(const ops::AnyOperation& operation) {
  if (!Watched::all().any()) return;
  Watched::all().stamp([&](const auto& write) {
    operation.visit([&](const char*, const ops::Role& role, const Tensor& tensor) {
      if (tensor && role.access != ops::Access::read) write(tensor);
    });
  });
}

void stamp_write(const Tensor& tensor) {
  if (Watched::all().any()) Watched::all().stamp([&](const auto& write) { write(tensor); });
}

}  // namespace lockstep::kernels
