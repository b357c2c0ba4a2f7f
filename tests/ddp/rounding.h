// A hook of a caller's own that remembers both kinds of things: what ranks share, and what each has for
// itself.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ddp/hook.h"

namespace lockstep::test {

/// From step 2 on the gradients of matrices are sent as multiples of 1/4: what rounding leaves out comes on
/// top of the rank's next gradient, and half of what stood for the last sum on top of the next one. On the
/// CPU.
class Rounding final : public ddp::Hook {
 public:
  std::string describe() const override { return "rounding"; }
  void bind(ddp::Buckets& buckets) override {
    buckets_ = &buckets;
    works_.assign(buckets.plan().buckets().size(), 0);
    for (const ddp::BucketPlan::Gradient& gradient : buckets.plan().gradients()) {
      if (gradient.shape.rank() != 2 || gradient.shape.numel() == 0) continue;
      Memory& memory = memory_[gradient.name];
      if (memory.error) continue;
      memory = {.error = Tensor::zeros(gradient.shape), .last = Tensor::zeros(gradient.shape)};
    }
  }
  void begin_step(std::uint64_t step) override { rounds_ = step >= 2; }
  void start(int bucket) override {
    if (rounds_) each_matrix_of(bucket, [this](int gradient, Memory& memory) { round(gradient, memory); });
    works_[static_cast<std::size_t>(bucket)] = buckets_->start_sum(bucket);
  }
  void finish() override {
    for (std::size_t bucket = 0; bucket < works_.size(); ++bucket) {
      if (works_[bucket] != 0) buckets_->transport().order_after(works_[bucket]);
      if (!rounds_) continue;
      each_matrix_of(static_cast<int>(bucket), [this](int gradient, Memory& memory) {
        float *const sum = buckets_->gradient(gradient, 0).data<float>(), *const last =
                                                                              memory.last.data<float>();
        for (std::int64_t i = 0; i < memory.last.numel(); ++i) last[i] = sum[i] += last[i] / 2;
      });
    }
    remembers_ = remembers_ || rounds_;
  }
  std::vector<ddp::HookState> state() override {
    if (!remembers_) return {};
    ddp::HookState last{.name = "rounding/last", .by_rank = false, .entries = {}},
        error{.name = "rounding/error", .by_rank = true, .entries = {}};
    for (const auto& [name, memory] : memory_) {
      last.entries.push_back({name, memory.last});
      error.entries.push_back({name, memory.error});
    }
    return {last, error};
  }
  std::vector<ddp::HookState> state_to_load() override {
    remembers_ = true;
    return state();
  }

 private:
  struct Memory {
    Tensor error, last;
  };

  template <class Do>
  void each_matrix_of(int bucket, const Do& act) {
    const ddp::BucketPlan& plan = buckets_->plan();
    for (const int gradient : plan.buckets()[static_cast<std::size_t>(bucket)].gradients) {
      const auto memory = memory_.find(plan.gradients()[static_cast<std::size_t>(gradient)].name);
      if (memory != memory_.end()) act(gradient, memory->second);
    }
  }
  /// All that this rank sends goes into its first accumulator.
  void round(int gradient, Memory& memory) {
    if (buckets_->partial_sums() == 0) return;
    float *const sent = buckets_->gradient(gradient, 0).data<float>(), *const error =
                                                                           memory.error.data<float>();
    for (std::int64_t i = 0; i < memory.error.numel(); ++i) {
      float mine = error[i];
      for (int accumulator = 0; accumulator < buckets_->partial_sums(); ++accumulator)
        mine += std::exchange(buckets_->gradient(gradient, accumulator).data<float>()[i], 0.0f);
      sent[i] = std::round(4 * mine) / 4;
      error[i] = mine - sent[i];
    }
  }

  ddp::Buckets* buckets_ = nullptr;
  std::vector<comm::Work> works_;
  std::map<std::string, Memory> memory_;
  bool rounds_ = false, remembers_ = false;
};

}  // namespace lockstep::test
