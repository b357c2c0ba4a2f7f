// Parameters that some shards do not use: named as an error, or counted as zero.
#include <boost/test/unit_test.hpp>

#include "ddp/toy.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(usage, *ranks(1, 2, 3, 4))

LossOf deep_in(const std::function<bool(int)>& is_deep) {
  return [is_deep](Net& net, Tape& tape, const ToyShard& shard) {
    return is_deep(shard.index) ? plain_loss(net, tape, shard) : shallow(net, tape, shard);
  };
}

BOOST_AUTO_TEST_CASE(a_parameter_without_gradient_is_named_on_every_rank_before_the_step_ends) {
  ToyRun run(tiny({.shards = 4}));
  const std::string text = same_error(ExitCode::usage, [&] { run.step(0, shallow); });
  BOOST_TEST(contains(text, "tied.weight in no shard"));
  BOOST_TEST(contains(text, "nothing in no shard"));
  BOOST_TEST(!contains(text, "in.weight"));
  for (const Param& param : run.net.params) BOOST_TEST(!param.gradient, param.name);
}

BOOST_AUTO_TEST_CASE(the_step_after_such_an_error_works) {
  ToyRun run(tiny({.shards = 4}));
  same_error(ExitCode::usage, [&] { run.step(0, shallow); });
  run.step(1, plain_loss);
  check_gradients(run.net, reference(1, 4));
}

BOOST_AUTO_TEST_CASE(allowed_unused_parameters_count_as_zero_and_keep_no_gradient_if_no_rank_used_them) {
  ToyRun run(tiny({.shards = 5, .unused = ddp::Unused::allow}));
  for (std::uint64_t step = 0; step < 3; ++step) {
    run.step(step, shallow);
    const Gradients wanted = reference(step, 5, 1, shallow);
    BOOST_TEST(!run.net["tied.weight"].gradient);
    for (const std::size_t p : {0, 1, 3, 4})
      BOOST_TEST(same_bits(elements(run.net.params[p].gradient), wanted[p]), run.net.params[p].name);
  }
}

BOOST_AUTO_TEST_CASE(a_parameter_used_by_one_rank_alone_has_its_gradient_on_all) {
  const int shards = 4;
  for (int user = 0; user < shards; ++user) {
    ToyRun run(tiny({.shards = shards, .unused = ddp::Unused::allow}));
    for (std::uint64_t step = 0; step < 3; ++step) {
      const LossOf loss_of = deep_in([&](int shard) { return shard == user; });
      run.step(step, loss_of);
      check_gradients(run.net, reference(step, shards, 1, loss_of));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_gradient_of_an_earlier_step_does_not_stay) {
  ToyRun run(tiny({.shards = 4, .unused = ddp::Unused::allow}));
  run.step(0, plain_loss);
  BOOST_TEST(bool(run.net["tied.weight"].gradient));
  run.step(1, shallow);
  BOOST_TEST(!run.net["tied.weight"].gradient);
}

BOOST_AUTO_TEST_CASE(a_parameter_unused_in_one_piece_but_used_in_another_has_a_gradient) {
  Net net;
  const auto backend = kernels::make_cpu_backend();
  ddp::DataParallel replicas(net.state(), world(), *backend, {.shards = 4, .micro_batches = 2});
  for (const int deep_piece : {0, 1}) {
    const auto step = static_cast<std::uint64_t>(deep_piece);
    replicas.step(toy_batch(step, replicas),
                  [&](Tape& tape, const ToyShard& shard, const ddp::MicroBatch& piece) {
                    const ToyShard part{shard.index, piece.rows(shard.x), piece.rows(shard.y)};
                    return piece.index == deep_piece ? plain_loss(net, tape, part) : shallow(net, tape, part);
                  });
    int piece = 0;
    check_gradients(net, reference(step, 4, 2, [&](Net& other, Tape& tape, const ToyShard& part) {
                      return piece++ % 2 == deep_piece ? plain_loss(other, tape, part)
                                                       : shallow(other, tape, part);
                    }));
  }
}

BOOST_AUTO_TEST_CASE(the_words_of_the_configuration_are_known) {
  BOOST_TEST((option::named<ddp::Unused>("allow") == ddp::Unused::allow));
  BOOST_TEST((option::named<ddp::Mode>("flat") == ddp::Mode::flat));
  BOOST_CHECK_THROW(option::named<ddp::Unused>("ignore"), UsageError);
  BOOST_CHECK_THROW(option::named<ddp::Mode>("hidden"), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
