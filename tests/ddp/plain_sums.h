// The plainest hook.
#pragma once

#include <algorithm>
#include <string>

#include "lockstep/ddp/hook.h"

namespace lockstep::test {

/// Buckets that sum plainly, by way of a hook.
class PlainSums final : public ddp::Hook {
 public:
  std::string describe() const override { return "plain sums"; }
  void bind(ddp::Buckets& buckets) override { buckets_ = &buckets; }
  void begin_step(std::uint64_t) override { last_ = 0; }
  void start(int bucket) override { last_ = std::max(last_, buckets_->start_sum(bucket)); }
  void finish() override {
    if (last_ != 0) buckets_->transport().order_after(last_);
  }

 private:
  ddp::Buckets* buckets_ = nullptr;
  comm::Work last_ = 0;
};

}  // namespace lockstep::test
