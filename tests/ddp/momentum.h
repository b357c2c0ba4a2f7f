// A hook of a caller's own with a state.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "lockstep/ddp/hook.h"

namespace lockstep::test {

/// Half of what stood for the last sum of a matrix comes on top of the next one. On the CPU.
class Momentum final : public ddp::Hook {
 public:
  std::string describe() const override { return "momentum"; }
  void bind(ddp::Buckets& buckets) override {
    buckets_ = &buckets;
    for (const ddp::BucketPlan::Gradient& gradient : buckets.plan().gradients()) {
      if (gradient.shape.rank() == 2 && gradient.shape.numel() > 0)
        last_sums_.try_emplace(gradient.name, Tensor::zeros(gradient.shape));
    }
  }
  void begin_step(std::uint64_t) override { last_work_ = 0; }
  void start(int bucket) override { last_work_ = std::max(last_work_, buckets_->start_sum(bucket)); }
  void finish() override {
    if (last_work_ != 0) buckets_->transport().order_after(last_work_);
    const auto& gradients = buckets_->plan().gradients();
    for (std::size_t g = 0; g < gradients.size(); ++g) {
      const auto found = last_sums_.find(gradients[g].name);
      if (found == last_sums_.end()) continue;
      float* const sum = buckets_->gradient(static_cast<int>(g), 0).data<float>();
      float* const last = found->second.data<float>();
      for (std::int64_t i = 0; i < found->second.numel(); ++i) last[i] = sum[i] += last[i] / 2;
    }
  }
  std::vector<ddp::HookState> state() override {
    ddp::HookState state{.name = "momentum", .entries = {}};
    for (const auto& [name, tensor] : last_sums_) state.entries.push_back({name, tensor});
    return {state};
  }

 private:
  ddp::Buckets* buckets_ = nullptr;
  comm::Work last_work_ = 0;
  std::map<std::string, Tensor> last_sums_;
};

}  // namespace lockstep::test
