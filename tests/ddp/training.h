// What the tests of whole training runs share: comparing runs, counting what is sent.
#pragma once

#include <cmath>

#include "ddp/toy.h"
#include "support/forwarding.h"

namespace lockstep::test {

/// Counts every call that other ranks have to answer.
class Counting final : public Forwarding {
 public:
  using Forwarding::Forwarding;
  int sums = 0, others = 0;

  comm::Work start_tree_sum(const comm::TreeSum& sum, const comm::ShardMap& map) override {
    ++sums;
    return Forwarding::start_tree_sum(sum, map);
  }
  comm::Work start_reduce_scatter(const comm::TreeSum& sum, const comm::ShardMap& map,
                                  const comm::Slices& slices) override {
    ++others;
    return Forwarding::start_reduce_scatter(sum, map, slices);
  }
  comm::Work start_all_gather(const comm::TreeSum& vector, const comm::Slices& slices) override {
    ++others;
    return Forwarding::start_all_gather(vector, slices);
  }
  void all_gather(const void* mine, std::size_t bytes, void* all) override {
    ++others;
    Forwarding::all_gather(mine, bytes, all);
  }
  void all_gather_unequal(const void* mine, std::span<const std::size_t> bytes_of_rank, void* all) override {
    ++others;
    Forwarding::all_gather_unequal(mine, bytes_of_rank, all);
  }
  std::vector<std::string> all_gather_texts(const std::string& mine) override {
    ++others;
    return Forwarding::all_gather_texts(mine);
  }
  void broadcast(void* data, std::size_t bytes, int root) override {
    ++others;
    Forwarding::broadcast(data, bytes, root);
  }
  void barrier(double timeout_s) override {
    ++others;
    Forwarding::barrier(timeout_s);
  }
};

/// Every parameter, and every float32 buffer, of one model has the bits of the other's.
inline void check_same_state(const ModelState& found, const ModelState& wanted) {
  BOOST_TEST_REQUIRE(found.params.size() == wanted.params.size());
  for (std::size_t p = 0; p < wanted.params.size(); ++p)
    BOOST_TEST(same_bits(elements(found.params[p]->value), elements(wanted.params[p]->value)),
               wanted.params[p]->name << " differs");
  BOOST_TEST_REQUIRE(found.buffers.size() == wanted.buffers.size());
  for (std::size_t b = 0; b < wanted.buffers.size(); ++b) {
    const Tensor &here = found.buffers[b]->value, &there = wanted.buffers[b]->value;
    BOOST_TEST_REQUIRE(here.bytes() == there.bytes());
    BOOST_TEST(std::memcmp(here.raw(), there.raw(), here.bytes()) == 0,
               wanted.buffers[b]->name << " differs");
  }
}

/// Equal but for the rounding of sums in another order: within `tolerance` of the largest element, or of
/// `floor` where that is larger (differences of large numbers that cancel).
inline void check_close(const std::vector<float>& found, const std::vector<float>& wanted,
                        const std::string& name, float tolerance = 2e-5f, float floor = 1e-3f) {
  BOOST_TEST_REQUIRE(found.size() == wanted.size(), name << " has another size");
  float largest = floor, distance = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    largest = std::max(largest, std::abs(wanted[i]));
    distance = std::max(distance, std::abs(found[i] - wanted[i]));
    BOOST_TEST(std::isfinite(found[i]), name << " is not finite");
  }
  BOOST_TEST(distance <= tolerance * largest, name << " is " << distance << " away of " << largest);
}

/// `backend`: that of the device on which `found` is.
inline void check_close_state(const ModelState& found, const ModelState& wanted, float tolerance = 2e-5f,
                              kernels::Backend* backend = nullptr) {
  BOOST_TEST_REQUIRE(found.params.size() == wanted.params.size());
  for (std::size_t p = 0; p < wanted.params.size(); ++p)
    check_close(elements(found.params[p]->value, backend), elements(wanted.params[p]->value),
                wanted.params[p]->name, tolerance);
  for (std::size_t b = 0; b < wanted.buffers.size(); ++b) {
    const Tensor here = kernels::on_cpu(found.buffers[b]->value, backend), there = wanted.buffers[b]->value;
    if (there.dtype() == DType::float32) {
      check_close(elements(here), elements(there), wanted.buffers[b]->name, tolerance);
    } else {
      BOOST_TEST(std::memcmp(here.raw(), there.raw(), there.bytes()) == 0,
                 wanted.buffers[b]->name << " differs");
    }
  }
}

/// Copies of the rows of all, one below the other.
inline Tensor stacked(const std::vector<Tensor>& all) {
  std::int64_t rows = 0;
  for (const Tensor& tensor : all) rows += tensor.size(0);
  std::vector<std::int64_t> extents(all.at(0).shape().begin(), all[0].shape().end());
  extents[0] = rows;
  const Tensor whole = Tensor::empty(Shape(std::span<const std::int64_t>(extents)), all[0].dtype());
  std::int64_t row = 0;
  for (const Tensor& tensor : all) {
    copy_elements(tensor, whole.rows(row, row + tensor.size(0)));
    row += tensor.size(0);
  }
  return whole;
}

}  // namespace lockstep::test
