// Profiles of operations, and the ceilings of this node.
#include "kernels/profile.h"

#include <algorithm>
#include <map>

#include "lockstep/base/random.h"
#include "ops/matmul.h"

namespace lockstep::kernels {

void Profile::add(const std::string& name, double ms, double flops, double bytes) {
  OperationFigures& figures = by_name_[name];
  ++figures.calls;
  figures.ms += ms;
  figures.flops += flops;
  figures.bytes += bytes;
}

std::vector<OperationFigures> Profile::operations() const {
  std::vector<OperationFigures> all;
  for (const auto& [name, figures] : by_name_) {
    all.push_back(figures);
    all.back().name = name;
  }
  std::ranges::stable_sort(all, std::ranges::greater(), &OperationFigures::ms);
  return all;
}

namespace {

constexpr int moment_of_start = 0, moment_of_end = 1;

}  // namespace

Profiler::Profiler(Backend& backend, Profile& profile)
    : backend_(backend), profile_(profile), before_(backend.observe(this)) {}

Profiler::~Profiler() { backend_.observe(before_); }

void Profiler::begin() {
  if (pending_.size() == timers_.size()) timers_.push_back(backend_.make_timer());
  timers_[pending_.size()]->mark(moment_of_start);
}

void Profiler::end(std::string_view label, const ops::Cost& cost, bool read) {
  const std::size_t before = pending_.size();
  timers_[before]->mark(moment_of_end);
  pending_.push_back({std::string(label), cost});
  if (backend_.device() == Device::cpu())
    add_finished(pending_.size());
  else if (read)
    add_finished(before);  // the read has waited for earlier operations, but not for its own mark
}

void Profiler::add_finished(std::size_t spans) {
  for (std::size_t span = 0; span < spans; ++span) {
    const auto& [label, cost] = pending_[span];
    profile_.add(label, timers_[span]->elapsed_ms(moment_of_start, moment_of_end), cost.flops, cost.bytes);
  }
  const auto over = static_cast<std::ptrdiff_t>(spans);
  pending_.erase(pending_.begin(), pending_.begin() + over);
  std::rotate(timers_.begin(), timers_.begin() + over, timers_.end());  // the others keep theirs
}

namespace {

/// Constants would flatter the ceiling: on an H200 their products took 13 % less time than those of random
/// numbers, as fewer bits change. `matrix` has a multiple of 256 rows, which repeat.
void fill_at_random(Backend& backend, const Tensor& matrix, std::string_view name) {
  constexpr std::int64_t drawn_rows = 256;
  const Tensor drawn = Tensor::empty({drawn_rows, matrix.size(1)});
  const Random random({1, purpose_of(name)});
  for (std::int64_t i = 0; i < drawn.numel(); ++i)
    drawn.data<float>()[i] = random.uniform(static_cast<std::uint64_t>(i)) - 0.5F;
  const Tensor rows = backend.in_type(on_device(drawn, backend), matrix.dtype());
  for (std::int64_t row = 0; row < matrix.size(0); row += drawn_rows)
    backend.copy(rows, matrix.rows(row, row + drawn_rows));
}

}  // namespace

Ceilings measure_ceilings(Backend& backend, DType compute) {
  constexpr int tries = 8;
  const bool on_cpu = backend.device() == Device::cpu();
  // Large enough to keep a GPU busy, small enough for a CPU to finish soon.
  const std::int64_t side = on_cpu ? 1024 : 8192, copied = std::int64_t{on_cpu ? 16 : 256} << 20;
  const std::unique_ptr<Timer> timer = backend.make_timer();
  const Tensor read = Tensor::empty({1}), last = backend.empty({1});
  backend.fill(last, 0);
  const auto best_ms = [&](const auto& call) {
    double best = 0;
    for (int i = 0; i < tries; ++i) {
      timer->mark(0);
      call();
      timer->mark(1);
      backend.copy(last, read);  // waits for the device
      const double ms = timer->elapsed_ms(0, 1);
      best = i == 0 ? ms : std::min(best, ms);
    }
    return best;
  };
  Ceilings ceilings{.product_rows = side, .copied_bytes = copied * 4};
  {
    const Tensor x = backend.empty({side, side}, compute), weight = backend.empty({side, side}, compute),
                 y = backend.empty({side, side}, compute);
    fill_at_random(backend, x, "ceilings of x");
    fill_at_random(backend, weight, "ceilings of weight");
    ceilings.gflops = 2e-6 * static_cast<double>(side * side * side) /
                      best_ms([&] { backend.run(ops::linear(x, weight, {}, y)); });
  }
  const Tensor from = backend.empty({copied}), to = backend.empty({copied});
  backend.fill(from, 1);
  ceilings.gb_s = 2e-6 * static_cast<double>(from.bytes()) / best_ms([&] { backend.copy(from, to); });
  return ceilings;
}

}  // namespace lockstep::kernels
