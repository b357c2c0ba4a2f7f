// A small network whose gradients travel by PowerSGD, and what its tests measure.
#pragma once

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <memory>

#include "ddp/toy.h"
#include "lockstep/ddp/power_sgd.h"

namespace lockstep::test {

/// Compresses the three weights from step 2 on.
inline constexpr ddp::PowerSgdOptions thin{.rank = 1, .start_step = 2, .min_compression = 1};
/// Factors as wide as the matrices.
inline constexpr ddp::PowerSgdOptions full{.rank = 99, .start_step = 2, .min_compression = 1e-3};
inline constexpr ddp::PowerSgdOptions forgetful{
    .rank = 1, .start_step = 0, .min_compression = 1, .error_feedback = false, .warm_start = false};

/// Buckets that hold gradients of both kinds.
inline constexpr double mixed_mb = 2e-4;

struct PowerSgdRun {
  explicit PowerSgdRun(const ddp::PowerSgdOptions& power_sgd, int shards = 6, double bucket_mb = mixed_mb,
                       comm::Communicator& ranks = world(), DType wire = DType::float32)
      : hook(std::make_shared<ddp::PowerSgd>(power_sgd)),
        backend(kernels::make_cpu_backend()),
        replicas(net.state(), ranks, *backend,
                 {.bucket_mb = bucket_mb,
                  .first_bucket_mb = bucket_mb,
                  .shards = shards,
                  .unused = ddp::Unused::allow,
                  .wire = wire,
                  .hook = hook,
                  .allow_non_finite_loss = true}) {}
  /// A step on the data of step `data`; parameters stay as they are.
  ddp::StepResult step(std::uint64_t step, std::uint64_t data, const LossOf& loss_of = plain_loss) {
    ToyBatch batch = toy_batch(data, replicas);
    batch.step = step;
    return replicas.step(batch, [&](Tape& tape, const ToyShard& shard) { return loss_of(net, tape, shard); });
  }
  ddp::StepResult step(std::uint64_t number) { return step(number, number); }
  /// Gradient descent on the data of step 0.
  double train(std::uint64_t number, float rate) {
    const ddp::StepResult result = step(number, 0);
    for (const Param& param : net.params) {
      for (std::int64_t i = 0; i < param.value.numel(); ++i)
        param.value.data<float>()[i] -=
            rate / static_cast<float>(result.weight) * param.gradient.data<float>()[i];
    }
    return result.mean_loss();
  }
  Gradients gradients() const {
    Gradients all;
    for (const Param& param : net.params) all.push_back(elements(param.gradient));
    return all;
  }
  Net net;
  std::shared_ptr<ddp::PowerSgd> hook;
  std::unique_ptr<kernels::Backend> backend;
  ddp::DataParallel replicas;
};

/// Of a from b, in multiples of b's norm.
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  BOOST_REQUIRE(a.size() == b.size());
  double apart = 0, whole = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    apart += std::pow(static_cast<double>(a[i]) - b[i], 2);
    whole += std::pow(static_cast<double>(b[i]), 2);
  }
  return whole > 0 ? std::sqrt(apart / whole) : std::sqrt(apart);
}

inline bool same_gradients(const Gradients& a, const Gradients& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same_bits);
}

inline Tensor entry(ddp::PowerSgd& hook, const std::string& state, const std::string& name) {
  for (const ddp::HookState& kind : hook.state()) {
    if (kind.name != state) continue;
    for (const auto& [of, tensor] : kind.entries) {
      if (of == name) return tensor;
    }
  }
  return {};
}

/// The sum over ranks.
inline std::vector<float> sum_over_ranks(const Tensor& mine) {
  const auto count = static_cast<std::size_t>(mine.numel());
  std::vector<float> all(count * static_cast<std::size_t>(world().size())), sum(count);
  world().all_gather(mine.raw(), mine.bytes(), all.data());
  for (std::size_t i = 0; i < all.size(); ++i) sum[i % count] += all[i];
  return sum;
}

}  // namespace lockstep::test
