// Gradients accumulate over the shards of a rank and the pieces of a shard: nothing is sent before a rank's
// last shard, and what is sent then is the sum of all.
#include <boost/test/unit_test.hpp>
#include <memory>

#include "ddp/training.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(accumulation, *ranks(1, 2, 3, 4))

/// Two pieces a shard, so many shards that every rank accumulates.
constexpr int pieces = 2;
int shards_of(int ranks) { return 2 * ranks + 1; }

ddp::Options accumulating(ddp::Options options = {}) {
  options.shards = shards_of(world().size());
  options.micro_batches = pieces;
  return tiny(options);
}

/// The plain sum, and a look at every bucket when its turn comes.
class Looking final : public ddp::Hook {
 public:
  std::string describe() const override { return "looking"; }
  void bind(ddp::Buckets& buckets) override {
    buckets_ = &buckets;
    ++binds;
  }
  void begin_step(std::uint64_t step) override {
    step_ = step;
    started.clear();
    works_.clear();
  }
  void start(int bucket) override {
    started.push_back(bucket);
    const comm::ShardMap map(shards_of(world().size()), world().size());
    const auto subtrees = map.subtrees(world().rank());
    BOOST_TEST(buckets_->partial_sums() == static_cast<int>(subtrees.size()));
    const auto backend = kernels::make_cpu_backend();
    for (std::size_t accumulator = 0; accumulator < subtrees.size(); ++accumulator) {
      Net net;
      const Gradients wanted = comm::fold_tree(
          subtrees[accumulator],
          [&](int shard) {
            return shard_gradients(net, *backend, toy_shard(step_, shard), pieces, plain_loss);
          },
          add);
      for (const int g : buckets_->plan().buckets()[static_cast<std::size_t>(bucket)].gradients)
        BOOST_TEST(same_bits(elements(buckets_->gradient(g, static_cast<int>(accumulator))),
                             wanted[static_cast<std::size_t>(g)]),
                   "gradient " << g << " in accumulator " << accumulator << " is not this rank's alone");
    }
    works_.push_back(buckets_->start_sum(bucket));
  }
  void finish() override {
    for (const comm::Work work : works_) {
      if (work != 0) buckets_->transport().order_after(work);
    }
  }

  std::vector<int> started;
  int binds = 0;

 private:
  ddp::Buckets* buckets_ = nullptr;
  std::uint64_t step_ = 0;
  std::vector<comm::Work> works_;
};

BOOST_AUTO_TEST_CASE(until_its_turn_a_bucket_holds_the_sum_of_this_ranks_shards_alone) {
  const auto looking = std::make_shared<Looking>();
  ToyRun run(accumulating({.hook = looking}));
  for (std::uint64_t step = 0; step < 3; ++step) {
    std::vector<int> in_order(run.replicas.plan().buckets().size());
    for (std::size_t b = 0; b < in_order.size(); ++b) in_order[b] = static_cast<int>(b);
    run.check_step(step);
    BOOST_TEST(looking->started == in_order, boost::test_tools::per_element());
    BOOST_TEST(looking->binds == 2);  // at the start, and when the plan was remade after the first step
  }
}

BOOST_AUTO_TEST_CASE(shards_and_pieces_add_up_to_the_gradient_of_the_whole_batch) {
  ToyRun run(accumulating());
  const int shards = shards_of(world().size());
  std::vector<Tensor> x, y;
  for (int shard = 0; shard < shards; ++shard) {
    x.push_back(toy_shard(0, shard).x);
    y.push_back(toy_shard(0, shard).y);
  }
  const Tensor all_x = stacked(x), all_y = stacked(y);
  run.step(0);
  Net net;
  const Gradients wanted = shard_gradients(net, *run.backend, {0, all_x, all_y}, 1, plain_loss);
  for (std::size_t p = 0; p < wanted.size(); ++p)
    check_close(elements(run.net.params[p].gradient), wanted[p], net.params[p].name);
}

BOOST_AUTO_TEST_CASE(every_step_sends_every_bucket_once_however_much_is_accumulated) {
  Counting transport(world());
  ToyRun run(accumulating(), {.transport = &transport});
  transport.sums = 0;
  for (std::uint64_t step = 0; step < 5; ++step) {
    run.check_step(step);
    BOOST_TEST(transport.sums == 5 * static_cast<int>(step + 1));  // "nothing" has no elements
  }
}

BOOST_AUTO_TEST_CASE(a_plan_remade_amid_shards_and_pieces_moves_every_sum_to_its_new_place) {
  // The tied layer's gradient is the last to arrive, but not the last registered: places must change.
  const LossOf tied_last = [](Net& net, Tape& tape, const ToyShard& shard) {
    const Var early =
        linear(tape.constant(Tensor::zeros({shard.x.size(0), 7})), tape.parameter(net["tied.weight"]));
    const Loss loss = plain_loss(net, tape, shard);
    const Loss more = mse(early, Tensor::zeros(early.shape()));
    return Loss{loss.sum + more.sum, loss.total};
  };
  ToyRun run(accumulating());
  const int tied = 2;
  const auto place = run.replicas.plan().location(tied).offset_bytes;
  run.check_step(0, tied_last);
  BOOST_TEST(run.replicas.plan().order().back() == tied);
  BOOST_TEST(run.replicas.plan().location(tied).offset_bytes != place);
  for (std::uint64_t step = 1; step < 4; ++step) run.check_step(step, tied_last);
}

BOOST_AUTO_TEST_CASE(passes_that_record_nothing_in_the_middle_of_a_step_add_nothing) {
  ToyRun run(accumulating());
  Tape aside(*run.backend);
  const LossOf with_an_evaluation = [&](Net& net, Tape& tape, const ToyShard& shard) {
    aside.begin({.training = false, .record = false});
    plain_loss(net, aside, toy_shard(7, 7));
    const Loss loss = plain_loss(net, tape, shard);
    aside.begin({.training = true, .record = false});
    plain_loss(net, aside, toy_shard(8, 8));
    return loss;
  };
  for (std::uint64_t step = 0; step < 2; ++step) {
    run.step(step, with_an_evaluation);
    check_gradients(run.net, reference(step, shards_of(world().size()), pieces));
  }
}

BOOST_AUTO_TEST_CASE(the_model_used_outside_the_steps_accumulates_here_alone_and_disturbs_no_step) {
  Counting transport(world());
  ToyRun run(accumulating(), {.transport = &transport});
  run.step(0);
  transport.sums = transport.others = 0;
  {
    LocalGradients local(run.net.state(), *run.backend);
    local.clear();  // of the step's sums
    Tape tape(*run.backend);
    const int mine = 100 + world().rank();
    for (const int shard : {mine, mine + 50}) {
      tape.begin({.sink = &local});
      const ToyShard samples = toy_shard(0, shard);
      backward(plain_loss(run.net, tape, samples));
      tape.finish_backward();
    }
    Net net;
    const Gradients a = shard_gradients(net, *run.backend, toy_shard(0, mine), 1, plain_loss);
    const Gradients b = shard_gradients(net, *run.backend, toy_shard(0, mine + 50), 1, plain_loss);
    for (std::size_t p = 0; p < a.size(); ++p) {
      Gradients sum{a[p]};
      for (std::size_t i = 0; i < a[p].size(); ++i) sum[0][i] += b[p][i];
      check_close(elements(run.net.params[p].gradient), sum[0], net.params[p].name);
    }
    BOOST_TEST(transport.sums == 0);
    BOOST_TEST(transport.others == 0);
  }
  run.check_step(1);
}

BOOST_AUTO_TEST_CASE(what_one_early_piece_alone_used_is_summed_on_every_rank) {
  for (const int user : {0, world().size()}) {
    ToyRun run(accumulating({.unused = ddp::Unused::allow}));
    // The tied layer is used in the first piece of one shard, which is nobody's last; nothing else is
    // special.
    for (std::uint64_t step = 0; step < 3; ++step) {
      int piece = 0;
      const LossOf loss_of = [&](Net& net, Tape& tape, const ToyShard& shard) {
        const bool deep = piece++ % pieces == 0 && shard.index == user;
        Var h = relu(
            linear(tape.constant(shard.x), tape.parameter(net.params[0]), tape.parameter(net.params[1])));
        if (deep) h = relu(linear(h, tape.parameter(net.params[2])));
        return mse(
            linear(net.with_nothing(tape, h), tape.parameter(net.params[3]), tape.parameter(net.params[4])),
            shard.y);
      };
      run.step(step, loss_of);
      piece = 0;
      check_gradients(run.net, reference(step, shards_of(world().size()), pieces, loss_of));
      BOOST_TEST(bool(run.net["tied.weight"].gradient));
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
