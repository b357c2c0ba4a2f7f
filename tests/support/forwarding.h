// A communicator that passes everything on to another: tests override what they watch or hold up.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::test {

class Forwarding : public comm::CpuCommunicator {
 public:
  explicit Forwarding(comm::CpuCommunicator& real) : Forwarding(real, real) {}
  Forwarding(comm::CpuCommunicator& host, comm::GradientTransport& transport)
      : host_(host), real_(transport) {}

  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  const comm::Topology& topology() const override { return host_.topology(); }
  bool rounds(DType wire) const override { return real_.rounds(wire); }
  std::unique_ptr<comm::FlatBuffer> allocate_buffer(std::size_t bytes, int accumulators) override {
    return real_.allocate_buffer(bytes, accumulators);
  }
  comm::Work start_tree_sum(const comm::TreeSum& sum, const comm::ShardMap& map) override {
    return real_.start_tree_sum(sum, map);
  }
  comm::Work start_reduce_scatter(const comm::TreeSum& sum, const comm::ShardMap& map,
                                  const comm::Slices& slices) override {
    return real_.start_reduce_scatter(sum, map, slices);
  }
  comm::Work start_all_gather(const comm::TreeSum& vector, const comm::Slices& slices) override {
    return real_.start_all_gather(vector, slices);
  }
  void progress() override { real_.progress(); }
  bool done(comm::Work work) override { return real_.done(work); }
  void order_after(comm::Work work) override { real_.order_after(work); }
  bool may_be_captured() const override { return real_.may_be_captured(); }
  std::unique_ptr<comm::GradientTransport> duplicate() override { return real_.duplicate(); }
  comm::Work after_graphs() override { return real_.after_graphs(); }
  std::string async_error() const override { return real_.async_error(); }
  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    host_.all_gather(mine, bytes, all);
  }
  void all_gather_unequal(const void* mine, std::span<const std::size_t> bytes_of_rank, void* all) override {
    host_.all_gather_unequal(mine, bytes_of_rank, all);
  }
  void all_to_all(std::span<const std::span<const std::byte>> to_rank,
                  std::span<const std::span<std::byte>> from_rank) override {
    host_.all_to_all(to_rank, from_rank);
  }
  std::vector<std::string> all_gather_texts(const std::string& mine) override {
    return host_.all_gather_texts(mine);
  }
  void broadcast(void* data, std::size_t bytes, int root) override { host_.broadcast(data, bytes, root); }
  void barrier(double timeout_s) override { host_.barrier(timeout_s); }
  std::unique_ptr<comm::CpuCommunicator> split(int colour, int key) override {
    return host_.split(colour, key);
  }
  void enter(std::string_view phrase, std::string_view compared) override { host_.enter(phrase, compared); }
  void leave() override { host_.leave(); }
  void check_calls() override { host_.check_calls(); }
  [[noreturn]] void abort(int exit_code) override {
    host_.abort(exit_code);
    std::abort();
  }

 private:
  comm::CpuCommunicator& host_;
  comm::GradientTransport& real_;
};

}  // namespace lockstep::test
