// Handle: owns one identifier of the HDF5 library.
#pragma once

#include <cstdint>
#include <utility>

namespace lockstep::hdf5 {

/// Movable, closes on destruction (quietly: what can fail on closing is a file's last write, and
/// File::close() says so).
class Handle {
 public:
  using Closer = int (*)(std::int64_t);

  Handle() = default;
  Handle(std::int64_t id, Closer closer) noexcept : id_(id), closer_(closer) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, -1)), closer_(other.closer_) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      close();
      id_ = std::exchange(other.id_, -1);
      closer_ = other.closer_;
    }
    return *this;
  }
  ~Handle() { close(); }

  std::int64_t id() const noexcept { return id_; }
  explicit operator bool() const noexcept { return id_ >= 0; }
  void close() noexcept;
  /// Gives the identifier up without closing it.
  std::int64_t release() noexcept { return std::exchange(id_, -1); }

 private:
  std::int64_t id_ = -1;
  Closer closer_ = nullptr;
};

}  // namespace lockstep::hdf5
