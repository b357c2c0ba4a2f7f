// How near formulas of elements come to a copy: bench.elementwise [MEBIBYTES [ROUNDS]], on one thread.
// Tensors are larger than the last cache; in each round every formula runs beside a memcpy of one of them.
// Printed are medians: bytes a second, reads and writes counted, beside the copy's; and the time beside the
// copy's.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "lockstep/base/random.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/ops/elementwise.h"

namespace lockstep {
namespace {

double seconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

class Measurement {
 public:
  Measurement(std::int64_t elements, int rounds) : rounds_(rounds) {
    const Random draw({.purpose = purpose_of("bench.elementwise")});
    for (Tensor& x : in_) {
      x = Tensor::empty({elements});
      for (std::int64_t i = 0; i < elements; ++i)
        x.data<float>()[i] = 0.1f + 1.4f * draw.uniform(static_cast<std::uint64_t>(i));
    }
    y_ = Tensor::zeros({elements});
  }

  template <class... Formula>
  void all(ops::FormulaList<Formula...>) {
    (one<Formula>(), ...);
  }

 private:
  template <class Formula>
  void one() {
    ops::Map<Formula> op{{}, {}, y_};
    std::copy_n(in_, Formula::inputs, op.in.begin());
    std::vector<double> copies, times;
    backend_->run(op);
    for (int round = 0; round < rounds_; ++round) {
      copies.push_back(seconds_of([&] { std::memcpy(y_.raw(), in_[0].raw(), y_.bytes()); }));
      times.push_back(seconds_of([&] { backend_->run(op); }));
    }
    const double ratio = median(times) / median(copies);
    fmt::print("{:24} {} inputs   bandwidth {:5.2f} of memcpy's   time {:5.2f}\n", Formula::name,
               Formula::inputs, (Formula::inputs + 1) / 2.0 / ratio, ratio);
  }

  int rounds_;
  std::unique_ptr<kernels::Backend> backend_ = kernels::make_cpu_backend(1);
  Tensor in_[4], y_;
};

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const std::int64_t mebibytes = argc > 1 ? std::atoll(argv[1]) : 128;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 15;
  if (mebibytes < 1 || rounds < 1)
    return fmt::print(stderr, "usage: bench.elementwise [MEBIBYTES [ROUNDS]]\n"), 2;
  lockstep::Measurement measurement(mebibytes << 18, rounds);
  measurement.all(lockstep::ops::Formulas{});
}
