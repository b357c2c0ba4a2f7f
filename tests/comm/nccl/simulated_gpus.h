// Several GPUs in one process, without any: each rank's calls are written down, then carried out in the CPU's
// memory, rank beside rank, under NCCL's rules. What breaks a rule throws.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "comm/nccl/device_calls.h"

namespace lockstep::test {

/// A call with other ranks in it.
struct Talk {
  enum class Kind { all_reduce, reduce_scatter, reduce, all_gather, broadcast, send, receive };
  Kind kind{};
  std::byte* data = nullptr;
  std::int64_t amount = 0;  ///< elements, or bytes where nothing is added
  DType dtype = DType::uint8;
  int peer = -1;  ///< or root
  bool message() const { return kind == Kind::send || kind == Kind::receive; }
};

/// The calls of one rank. What it does by itself is put off as well, until its turn comes.
class WrittenCalls final : public comm::DeviceCalls {
 public:
  struct Step {
    std::function<void()> alone;  ///< or a group
    std::vector<Talk> group;
  };
  std::deque<Step> steps;

  std::byte* scratch(std::size_t bytes) override;
  void zero(std::byte* memory, std::size_t bytes) override;
  void add(const comm::TreeAddition& addition) override;
  void narrow(const std::byte* values, std::byte* narrowed, std::int64_t count, DType wire) override;
  void widen(const std::byte* narrowed, std::byte* values, std::int64_t count, DType wire) override;
  void begin_group() override;
  void end_group() override;
  void all_reduce(std::byte* values, std::int64_t count, DType dtype) override {
    talk({Talk::Kind::all_reduce, values, count, dtype});
  }
  void reduce_scatter(std::byte* values, std::int64_t count, DType dtype) override {
    talk({Talk::Kind::reduce_scatter, values, count, dtype});
  }
  void reduce(std::byte* values, std::int64_t count, DType dtype, int root) override {
    talk({Talk::Kind::reduce, values, count, dtype, root});
  }
  void all_gather(std::byte* data, std::size_t bytes) override {
    talk({Talk::Kind::all_gather, data, static_cast<std::int64_t>(bytes)});
  }
  void broadcast(std::byte* data, std::size_t bytes, int root) override {
    talk({Talk::Kind::broadcast, data, static_cast<std::int64_t>(bytes), DType::uint8, root});
  }
  void send(const std::byte* data, std::size_t bytes, int to) override {
    talk(
        {Talk::Kind::send, const_cast<std::byte*>(data), static_cast<std::int64_t>(bytes), DType::uint8, to});
  }
  void receive(std::byte* data, std::size_t bytes, int from) override {
    talk({Talk::Kind::receive, data, static_cast<std::int64_t>(bytes), DType::uint8, from});
  }

 private:
  void alone(std::function<void()> what);
  void talk(const Talk& call);

  bool in_group_ = false;
  std::vector<std::unique_ptr<std::byte[]>> memories_;
};

/// The kernel's work, by the kernel's own text of the sum.
void add_on_cpu(const comm::TreeAddition& addition);

/// A collective call, one of each rank in rank order; they must be the same but for the data.
void carry_out(const std::vector<const Talk*>& calls);

/// Carries out what all ranks have written down. Groups meet in order; collective calls of a group must be
/// the same on all ranks, and every message of a group must find its other half in it.
void carry_out(std::vector<WrittenCalls>& ranks);

}  // namespace lockstep::test
