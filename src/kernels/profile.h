// Where the time of a backend's operations goes: calls, milliseconds, arithmetic and memory traffic of each.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/kernels/backend.h"

namespace lockstep::kernels {

/// One operation. Products (dense, convolutions, attention) are told apart by their shapes as well.
struct OperationFigures {
  std::string name;  ///< "layer_norm", "linear 1024 x 256 -> 768"
  std::int64_t calls = 0;
  double ms = 0;
  double flops = 0;  ///< of products, two for each multiply-add; 0 for others
  double bytes = 0;  ///< of all operands, each counted once a call: what has to move if no cache holds it
};

/// What operations have taken since clear().
class Profile {
 public:
  Profile();
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  void add(const std::string& name, double ms, double flops, double bytes);
  void clear();
  /// The longest first.
  std::vector<OperationFigures> operations() const;

 private:
  struct Entries;
  std::unique_ptr<Entries> entries_;
};

/// While it lives, what the backend is asked for is timed and added to `profile`. Both must outlive it. Times
/// are the device's; those of a GPU are added at the next read (Backend::read, copy to the CPU), and a read's
/// own at the one after it.
class Profiler final : public Observer {
 public:
  Profiler(Backend& backend, Profile& profile);
  ~Profiler() override;
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  void begin() override;
  void end(std::string_view label, const ops::Cost& cost, bool read) override;

 private:
  struct Span {
    std::string label;
    ops::Cost cost;
  };
  /// Adds the first `spans` of what is pending: to be called when the device has passed their ends.
  void settle(std::size_t spans);

  Backend& backend_;
  Profile& profile_;
  Observer* const before_;                      // of this one
  std::vector<std::unique_ptr<Timer>> timers_;  // of the pending spans, and more
  std::vector<Span> pending_;                   // not known to be over
};

/// What this machine reaches with the same backend: the ceilings that figures are held against.
struct Ceilings {
  std::int64_t product_rows = 0, copied_bytes = 0;
  double gflops = 0;  ///< of the best of several products of square matrices
  double gb_s = 0;    ///< of the best of several copies, read and written bytes together
};

/// compute: of the products' operands.
Ceilings measure_ceilings(Backend& backend, DType compute = DType::float32);

}  // namespace lockstep::kernels
