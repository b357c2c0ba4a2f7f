// Profile: calls, milliseconds, arithmetic and memory traffic of each operation of a backend.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/kernels/backend.h"

namespace lockstep::kernels {

/// One operation. Products (dense, convolutions, attention) of different shapes are different operations.
struct OperationFigures {
  std::string name;  ///< "layer_norm", "matmul 1024 x 256 -> 768"
  std::int64_t calls = 0;
  double ms = 0;
  double flops = 0;  ///< of products, two for each multiply-add; 0 for others
  double bytes = 0;  ///< of all operands, each counted once per call: the traffic without caches
};

/// The figures of all operations since clear().
class Profile {
 public:
  void add(const std::string& name, double ms, double flops, double bytes);
  void clear() { by_name_.clear(); }
  /// The operations, the longest first.
  std::vector<OperationFigures> operations() const;

 private:
  std::map<std::string, OperationFigures> by_name_;
};

/// While it exists, the operations of the backend are timed and added to `profile`. Both must outlive it.
/// Times are the device's. Those of a GPU are added at the next read (Backend::read, copy to the CPU), the
/// time of a read at the read after it.
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
  /// Adds the first `spans` pending spans to the profile, once the device has passed their ends.
  void add_finished(std::size_t spans);

  Backend& backend_;
  Profile& profile_;
  Observer* const before_;                      // the previous observer
  std::vector<std::unique_ptr<Timer>> timers_;  // of the pending spans, and more
  std::vector<Span> pending_;                   // not yet in the profile
};

/// While it exists, it adds up the arithmetic of all operations of the backend, which must outlive it.
class FlopCounter final : public Observer {
 public:
  explicit FlopCounter(Backend& backend) : backend_(backend), before_(backend.observe(this)) {}
  ~FlopCounter() override { backend_.observe(before_); }
  FlopCounter(const FlopCounter&) = delete;
  FlopCounter& operator=(const FlopCounter&) = delete;

  void begin() override {}
  void end(std::string_view, const ops::Cost& cost, bool) override { flops_ += cost.flops; }
  double flops() const { return flops_; }  ///< two for each multiply-add

 private:
  Backend& backend_;
  Observer* const before_;
  double flops_ = 0;
};

/// The speed that this node reaches with the same backend, for comparison.
struct Ceilings {
  std::int64_t product_rows = 0, copied_bytes = 0;
  double gflops = 0;  ///< of the best of several products of square matrices
  double gb_s = 0;    ///< of the best of several copies, read and written bytes together
};

/// compute: the type of the products' operands.
Ceilings measure_ceilings(Backend& backend, DType compute = DType::float32);

}  // namespace lockstep::kernels
