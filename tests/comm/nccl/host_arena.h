// An arena in plain memory.
#pragma once

#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::test {

class HostArena final : public comm::Arena {
 public:
  HostArena(std::size_t plane_bytes, int planes)
      : plane_bytes_(plane_bytes), planes_(planes), memory_(plane_bytes * static_cast<std::size_t>(planes)) {}
  std::byte* plane(int index) override {
    return memory_.data() + plane_bytes_ * static_cast<std::size_t>(index);
  }
  int planes() const override { return planes_; }
  std::size_t plane_bytes() const override { return plane_bytes_; }

 private:
  std::size_t plane_bytes_;
  int planes_;
  std::vector<std::byte> memory_;
};

}  // namespace lockstep::test
