// How near formulas of elements, and products with broadcasting, come to a copy:
// bench.elementwise [MEBIBYTES [ROUNDS]], on one thread.
// Tensors are larger than the last cache; in each round every formula runs next to a memcpy of one of them.
// Printed are medians: bytes a second, reads and writes counted, next to the copy's; and the time next to the
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
  void all(ops::TypeList<Formula...>) {
    (one<Formula>(), ...);
  }

  /// [rows, width] times each of what is broadcast to it.
  void products() {
    for (const std::int64_t width : {2, 3, 4, 7, 16, 4096}) {
      const std::int64_t rows = y_.numel() / width;
      const Tensor y = Tensor::view(y_.raw(), {rows, width}, DType::float32);
      const Tensor x = Tensor::view(in_[0].raw(), {rows, width}, DType::float32);
      for (const Shape& other : {Shape{width}, Shape{rows, 1}, Shape{}}) {
        measure(fmt::format("[{}, {}] * {}", rows, width, to_string(other)),
                ops::Map<ops::Product>{{}, {x, Tensor::view(in_[1].raw(), other, DType::float32)}, y});
      }
    }
  }

 private:
  template <class Formula>
  void one() {
    ops::Map<Formula> op{{}, {}, y_};
    std::copy_n(in_, Formula::inputs, op.in.begin());
    measure(Formula::name, op);
  }

  void measure(std::string_view name, const auto& op) {
    std::vector<double> copies, times;
    double bytes = static_cast<double>(y_.bytes());
    for (const Tensor& input : op.in) bytes += static_cast<double>(input.bytes());
    backend_->run(op);
    for (int round = 0; round < rounds_; ++round) {
      copies.push_back(seconds_of([&] { std::memcpy(y_.raw(), in_[0].raw(), y_.bytes()); }));
      times.push_back(seconds_of([&] { backend_->run(op); }));
    }
    const double ratio = median(times) / median(copies);
    fmt::print("{:40} bandwidth {:5.2f} of memcpy's   time {:5.2f}\n", name,
               bytes / (2 * static_cast<double>(y_.bytes())) / ratio, ratio);
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
  measurement.products();
}
