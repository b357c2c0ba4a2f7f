// What ranks must have in common: a difference is the same error on every rank, with both sides.
#include <boost/test/unit_test.hpp>

#include "ddp/toy.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(agreement, *ranks(1, 2, 3, 4))

/// The error of wrapping `net` with `options`, the same on all ranks.
std::string refusal(const ModelState& model, const ddp::Options& options = {}) {
  const auto backend = kernels::make_cpu_backend();
  return same_error(ExitCode::usage, [&] { ddp::DataParallel(model, world(), *backend, options); });
}

bool odd_one_out() { return world().rank() == world().size() - 1; }

std::string last_rank() { return "rank " + std::to_string(world().size() - 1); }

BOOST_AUTO_TEST_CASE(another_number_of_parameters_is_told_with_the_first_difference) {
  if (world().size() == 1) return;
  Net net;
  ModelState state = net.state();
  if (odd_one_out()) state.params.pop_back();
  const std::string text = refusal(state);
  BOOST_TEST(contains(text, "'parameter nothing [0, 3] float32' on rank 0, but 'nothing' on " + last_rank()));
}

BOOST_AUTO_TEST_CASE(another_name_is_told_with_both) {
  if (world().size() == 1) return;
  Net net;
  if (odd_one_out()) net.params[2].name = "untied.weight";
  BOOST_TEST(contains(
      refusal(net.state()),
      "'parameter tied.weight [7, 7] float32' on rank 0, but 'parameter untied.weight [7, 7] float32' on " +
          last_rank()));
}

BOOST_AUTO_TEST_CASE(another_shape_is_told_with_both) {
  if (world().size() == 1) return;
  Net net;
  if (odd_one_out()) net.params[0].value = Tensor::zeros({5, 7});
  BOOST_TEST(contains(
      refusal(net.state()),
      "'parameter in.weight [7, 5] float32' on rank 0, but 'parameter in.weight [5, 7] float32' on " +
          last_rank()));
}

BOOST_AUTO_TEST_CASE(another_element_type_is_told_with_both) {
  if (world().size() == 1) return;
  Net net;
  if (odd_one_out()) net.params[0].value = Tensor::zeros({7, 5}, DType::float64);
  BOOST_TEST(contains(
      refusal(net.state()),
      "'parameter in.weight [7, 5] float32' on rank 0, but 'parameter in.weight [7, 5] float64' on " +
          last_rank()));
}

BOOST_AUTO_TEST_CASE(a_parameter_frozen_on_one_rank_alone_is_told) {
  if (world().size() == 1) return;
  Net net;
  if (odd_one_out()) net.params[1].trainable = false;
  BOOST_TEST(
      contains(refusal(net.state()),
               "'parameter in.bias [7] float32' on rank 0, but 'parameter in.bias [7] float32, frozen' on " +
                   last_rank()));
}

BOOST_AUTO_TEST_CASE(a_parameter_undivided_on_one_rank_alone_is_told) {
  if (world().size() == 1) return;
  Net net;
  if (odd_one_out()) net.params[0].undivided = true;
  BOOST_TEST(
      contains(refusal(net.state(), {.sharded_optimizer = true}),
               "float32' on rank 0, but 'parameter in.weight [7, 5] float32, undivided' on " + last_rank()));
}

BOOST_AUTO_TEST_CASE(another_buffer_is_told) {
  if (world().size() == 1) return;
  Net net;
  Buffer mean{"mean", Tensor::zeros({odd_one_out() ? 3 : 4})};
  ModelState state = net.state();
  state.buffers.push_back(&mean);
  BOOST_TEST(
      contains(refusal(state),
               "'buffer mean [4] float32' on rank 0, but 'buffer mean [3] float32' on " + last_rank()));
}

BOOST_AUTO_TEST_CASE(other_options_are_told) {
  if (world().size() == 1) return;
  Net net;
  BOOST_TEST(contains(refusal(net.state(), {.bucket_mb = odd_one_out() ? 1.0 : 25.0}),
                      "'option bucket_mb 25' on rank 0, but 'option bucket_mb 1' on " + last_rank()));
  BOOST_TEST(contains(refusal(net.state(), {.compute = odd_one_out() ? DType::bfloat16 : DType::float32}),
                      "'option compute float32' on rank 0, but 'option compute bfloat16' on " + last_rank()));
}

BOOST_AUTO_TEST_CASE(a_difference_on_several_ranks_names_them_all) {
  if (world().size() < 3) return;
  Net net;
  if (world().rank() != 0) net.params[1].name = "in.offset";
  const std::string text = refusal(net.state());
  BOOST_TEST(contains(text, "but 'parameter in.offset [7] float32' on ranks 1, 2"));
}

BOOST_AUTO_TEST_CASE(a_model_without_trainable_parameters_is_refused) {
  Net net;
  for (Param& param : net.params) param.trainable = false;
  BOOST_TEST(contains(refusal(net.state()), "no trainable parameter"));
}

BOOST_AUTO_TEST_CASE(two_parameters_of_one_name_are_refused) {
  Net net;
  net.params[1].name = "in.weight";
  BOOST_TEST(contains(refusal(net.state()), "two parameters are named in.weight"));
}

BOOST_AUTO_TEST_CASE(parameters_are_float32) {
  Net net;
  net.params[0].value = Tensor::zeros({7, 5}, DType::float64);
  BOOST_TEST(contains(refusal(net.state()), "parameter in.weight is float64"));
}

BOOST_AUTO_TEST_CASE(more_ranks_than_shards_are_refused_with_both_numbers) {
  if (world().size() == 1) return;
  Net net;
  const std::string text = refusal(net.state(), {.shards = world().size() - 1});
  BOOST_TEST(contains(text, std::to_string(world().size()) + " ranks but only " +
                                std::to_string(world().size() - 1) + " shard"));
}

BOOST_AUTO_TEST_CASE(options_out_of_range_are_refused) {
  Net net;
  BOOST_TEST(contains(refusal(net.state(), {.micro_batches = 0}), "train.micro_batches: \"0\" is not"));
  BOOST_TEST(contains(refusal(net.state(), {.shards = -1}), "train.shards: \"-1\" is not"));
  BOOST_TEST(contains(refusal(net.state(), {.bucket_mb = 0}), "ddp.bucket_mb"));
  BOOST_TEST(contains(refusal(net.state(), {.comm_dtype = DType::int32}), "int32"));
}

BOOST_AUTO_TEST_CASE(a_refused_model_can_be_corrected_and_wrapped) {
  Net net;
  refusal(net.state(), {.micro_batches = 0});
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(net.state(), world(), *backend, {.shards = 4});
  replicas.step(toy_batch(0, replicas),
                [&](Tape& tape, const ToyShard& shard) { return plain_loss(net, tape, shard); });
  check_gradients(net, reference(0, 4));
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
