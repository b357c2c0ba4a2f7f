// Counts how often layers meet across the ranks in the middle of a pass.
#pragma once

#include "support/forwarding.h"

namespace lockstep::test {

class Meetings final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  comm::Work start_all_gather(const comm::TreeSum& vector, const comm::Slices& slices) override {
    ++count;
    return Forwarding::start_all_gather(vector, slices);
  }
  int count = 0;
};

}  // namespace lockstep::test
