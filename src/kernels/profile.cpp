// What operations have taken, and what this machine reaches.
#include "lockstep/kernels/profile.h"

#include <algorithm>
#include <map>

namespace lockstep::kernels {

struct Profile::Entries {
  std::map<std::string, OperationFigures> by_name;
};

Profile::Profile() : entries_(std::make_unique<Entries>()) {}
Profile::~Profile() = default;

void Profile::add(const std::string& name, double ms, double flops, double bytes) {
  OperationFigures& figures = entries_->by_name[name];
  ++figures.calls;
  figures.ms += ms;
  figures.flops += flops;
  figures.bytes += bytes;
}

void Profile::clear() { entries_->by_name.clear(); }

std::vector<OperationFigures> Profile::operations() const {
  std::vector<OperationFigures> all;
  for (const auto& [name, figures] : entries_->by_name) {
    all.push_back(figures);
    all.back().name = name;
  }
  std::ranges::stable_sort(all, std::ranges::greater(), &OperationFigures::ms);
  return all;
}

Ceilings measure_ceilings(Backend& backend, DType compute) {
  constexpr int tries = 8;
  const bool on_cpu = backend.device() == Device::cpu();
  // Large enough that a GPU is busy, small enough that a CPU is soon done.
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
      backend.copy(last, read);  // a device gets that far
      const double ms = timer->elapsed_ms(0, 1);
      best = i == 0 ? ms : std::min(best, ms);
    }
    return best;
  };
  Ceilings ceilings{.product_rows = side, .copied_bytes = copied * 4};
  {
    const Tensor x = backend.empty({side, side}, compute), weight = backend.empty({side, side}, compute),
                 y = backend.empty({side, side}, compute);
    backend.fill(x, 0.5F);
    backend.fill(weight, 0.25F);
    ceilings.gflops =
        2e-6 * static_cast<double>(side * side * side) / best_ms([&] { backend.linear(x, weight, {}, y); });
  }
  const Tensor from = backend.empty({copied}), to = backend.empty({copied});
  backend.fill(from, 1);
  ceilings.gb_s = 2e-6 * static_cast<double>(from.bytes()) / best_ms([&] { backend.copy(from, to); });
  return ceilings;
}

}  // namespace lockstep::kernels
