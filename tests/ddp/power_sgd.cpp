// PowerSGD: what stands for the sum, what is left out of it, and what is remembered.
#include <limits>

#include "ddp/power_sgd.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(power_sgd, *ranks(1, 2, 3, 4))

using Run = PowerSgdRun;

BOOST_AUTO_TEST_CASE(at_full_rank_nothing_is_left_out) {
  for (const int shards : {4, 7}) {
    Run run(full, shards);
    for (std::uint64_t step = 0; step < 6; ++step) {
      run.step(step);
      const Gradients wanted = reference(step, shards), found = run.gradients();
      for (std::size_t p = 0; p < wanted.size(); ++p)
        BOOST_TEST(distance(found[p], wanted[p]) < 1e-5, run.net.params[p].name << " at step " << step);
    }
  }
}

BOOST_AUTO_TEST_CASE(before_the_start_step_sums_are_plain_bit_for_bit) {
  Run run({.rank = 1, .start_step = 3, .min_compression = 1}, 7);
  for (std::uint64_t step = 0; step < 4; ++step) {
    run.step(step);
    if (step < 3) check_gradients(run.net, reference(step, 7));
  }
  BOOST_TEST(!same_bits(elements(run.net["in.weight"].gradient), reference(3, 7)[0]));
}

BOOST_AUTO_TEST_CASE(only_what_shrinks_enough_is_compressed) {
  // in.weight is [7, 5]: 35 elements, 12 in factors; out.weight 28 and 11; tied.weight 49 and 14.
  Run run({.rank = 1, .start_step = 2, .min_compression = 2.6});
  for (std::uint64_t step = 0; step < 3; ++step) run.step(step);
  const Gradients wanted = reference(2, 6);
  for (std::size_t p = 0; p < wanted.size(); ++p) {
    const std::string& name = run.net.params[p].name;
    const double apart = distance(elements(run.net.params[p].gradient), wanted[p]);
    const bool compressed = name == "in.weight" || name == "tied.weight";
    BOOST_TEST((compressed ? apart > 1e-3 : apart < 1e-6), name);
  }
  BOOST_TEST(contains(run.hook->summary(), "2 of 6 gradients travel as factors of rank 1 from step 2 on"));
}

/// P P^T M with P = orthonormal(M Q), Q given as [rank, m], in float64; M: [n, m].
std::vector<float> projected(const std::vector<float>& matrix, const Tensor& q, std::size_t n) {
  const std::size_t m = matrix.size() / n, rank = static_cast<std::size_t>(q.size(0));
  std::vector<std::vector<double>> basis;
  for (std::size_t k = 0; k < rank; ++k) {
    std::vector<double> p(n);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < m; ++j)
        p[i] += static_cast<double>(matrix[i * m + j]) * q.data<float>()[k * m + j];
    }
    const auto dot = [n](const std::vector<double>& a, const std::vector<double>& b) {
      double sum = 0;
      for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];
      return sum;
    };
    for (const std::vector<double>& other : basis) {
      const double along = dot(p, other);
      for (std::size_t i = 0; i < n; ++i) p[i] -= along * other[i];
    }
    const double norm = std::sqrt(dot(p, p));
    for (double& value : p) value /= norm;
    basis.push_back(p);
  }
  std::vector<float> result(matrix.size());
  for (std::size_t j = 0; j < m; ++j) {
    for (const std::vector<double>& p : basis) {
      double along = 0;
      for (std::size_t i = 0; i < n; ++i) along += p[i] * matrix[i * m + j];
      for (std::size_t i = 0; i < n; ++i) result[i * m + j] += static_cast<float>(along * p[i]);
    }
  }
  return result;
}

BOOST_AUTO_TEST_CASE(a_step_projects_the_sum_and_all_that_was_left_out) {
  Run run({.rank = 2, .start_step = 2, .min_compression = 1});
  for (std::uint64_t step = 0; step < 3; ++step) run.step(step);
  for (std::uint64_t step = 3; step < 6; ++step) {
    Gradients due = reference(step, 6);
    std::vector<Tensor> q;
    for (std::size_t p = 0; p < due.size(); ++p) {
      const std::string& name = run.net.params[p].name;
      const Tensor error = entry(*run.hook, "powersgd/error", name),
                   last = entry(*run.hook, "powersgd/q", name);
      BOOST_TEST(bool(error) == bool(last));
      q.push_back(last ? Tensor::empty(last.shape()) : Tensor{});
      if (!last) continue;
      copy_elements(last, q.back());
      const std::vector<float> left = sum_over_ranks(error);
      for (std::size_t i = 0; i < left.size(); ++i) due[p][i] += left[i];
    }
    run.step(step);
    int compressed = 0;
    for (std::size_t p = 0; p < due.size(); ++p) {
      if (!q[p]) continue;
      ++compressed;
      const Param& param = run.net.params[p];
      const std::vector<float> wanted =
          projected(due[p], q[p], static_cast<std::size_t>(param.value.size(0)));
      BOOST_TEST(distance(elements(param.gradient), wanted) < 1e-5, param.name);
      // What stands for the sum and what is left out are all there was.
      const std::vector<float> left = sum_over_ranks(entry(*run.hook, "powersgd/error", param.name));
      std::vector<float> all = elements(param.gradient);
      for (std::size_t i = 0; i < all.size(); ++i) all[i] += left[i];
      BOOST_TEST(distance(all, due[p]) < 1e-6, param.name);
    }
    BOOST_TEST(compressed == 3);
  }
}

/// How far the sum of a run's gradients of in.weight is from that of the true ones, over `steps` steps.
double drift(const ddp::PowerSgdOptions& options, std::uint64_t steps) {
  Run run(options);
  std::vector<float> found(35), wanted(35);
  const std::vector<float> truth = reference(0, 6)[0];
  for (std::uint64_t step = 0; step < steps; ++step) {
    run.step(step, 0);
    for (std::size_t i = 0; i < truth.size(); ++i) {
      found[i] += run.net["in.weight"].gradient.data<float>()[i];
      wanted[i] += truth[i];
    }
  }
  return distance(found, wanted);
}

BOOST_AUTO_TEST_CASE(with_error_feedback_the_gradients_of_many_steps_add_up_to_the_true_ones) {
  ddp::PowerSgdOptions without = thin;
  without.error_feedback = false;
  const double early = drift(thin, 6), late = drift(thin, 64), never = drift(without, 64);
  BOOST_TEST_MESSAGE("after 6 steps " << early << ", after 64 " << late << ", without " << never);
  BOOST_TEST(late < 0.05);
  BOOST_TEST(late < early / 4);
  BOOST_TEST(never > 4 * late);
}

/// The best approximation of rank 1 leaves this much of a matrix [n, m], in multiples of its norm.
double best_distance(const std::vector<float>& matrix, std::size_t n) {
  const std::size_t m = matrix.size() / n;
  std::vector<double> q(m, 1), p(n);
  double largest = 0, squares = 0;
  for (const float value : matrix) squares += static_cast<double>(value) * value;
  for (int round = 0; round < 2000; ++round) {
    double norm = 0;
    for (std::size_t i = 0; i < n; ++i) {
      p[i] = 0;
      for (std::size_t j = 0; j < m; ++j) p[i] += matrix[i * m + j] * q[j];
      norm += p[i] * p[i];
    }
    for (double& value : p) value /= std::sqrt(norm);
    largest = 0;
    for (std::size_t j = 0; j < m; ++j) {
      q[j] = 0;
      for (std::size_t i = 0; i < n; ++i) q[j] += matrix[i * m + j] * p[i];
      largest += q[j] * q[j];
    }
    for (double& value : q) value /= std::sqrt(largest);
  }
  return std::sqrt((squares - largest) / squares);
}

BOOST_AUTO_TEST_CASE(with_warm_start_a_steady_gradient_gets_its_best_approximation) {
  const std::vector<float> truth = reference(0, 6)[0];
  const double best = best_distance(truth, 7);
  const auto last_distance = [&](bool warm_start) {
    ddp::PowerSgdOptions options = forgetful;
    options.start_step = 2;
    options.warm_start = warm_start;
    Run run(options);
    double worst = 0;
    for (std::uint64_t step = 0; step < 40; ++step) {
      run.step(step, 0);
      if (step >= 30) worst = std::max(worst, distance(elements(run.net["in.weight"].gradient), truth));
    }
    return worst;
  };
  const double warm = last_distance(true), cold = last_distance(false);
  BOOST_TEST_MESSAGE("best " << best << ", warm " << warm << ", cold " << cold);
  BOOST_TEST(warm < 1.001 * best);
  BOOST_TEST(warm > 0.999 * best);
  BOOST_TEST(cold > 1.01 * best);
}

BOOST_AUTO_TEST_CASE(training_at_rank_1_lowers_the_loss_as_plain_sums_do) {
  const auto last_loss = [](const ddp::PowerSgdOptions& options) {
    Run run(options);
    double first = 0, last = 0;
    for (std::uint64_t step = 0; step < 80; ++step) {
      last = run.train(step, 5e-4f);
      if (step == 0) first = last;
    }
    BOOST_TEST(last < 0.8 * first);
    return last;
  };
  ddp::PowerSgdOptions plain = thin;
  plain.start_step = 1'000'000;
  const double compressed = last_loss(thin), without = last_loss(plain);
  BOOST_TEST_MESSAGE("loss " << compressed << ", without compression " << without);
  BOOST_TEST(compressed < 1.1 * without);
}

BOOST_AUTO_TEST_CASE(bits_are_the_same_from_run_to_run_and_on_every_rank) {
  for (const ddp::PowerSgdOptions& options : {thin, full, forgetful}) {
    Run a(options, 7), b(options, 7);
    for (std::uint64_t step = 0; step < 6; ++step) {
      a.train(step, 5e-4f);
      b.train(step, 5e-4f);
      BOOST_TEST(same_gradients(a.gradients(), b.gradients()));
    }
    a.replicas.check_replicas();
  }
}

BOOST_AUTO_TEST_CASE(another_seed_gives_other_bits) {
  ddp::PowerSgdOptions other = forgetful;
  other.seed = 1;
  Run a(forgetful), b(other);
  a.step(0);
  b.step(0);
  BOOST_TEST(!same_gradients(a.gradients(), b.gradients()));
}

BOOST_AUTO_TEST_CASE(a_failed_step_changes_nothing_that_is_remembered) {
  Run failing(thin), steady(thin);
  for (std::uint64_t step = 0; step < 6; ++step) {
    if (step >= 3) {
      for (int bad = 0; bad < 6; bad += 5) {
        same_error(ExitCode::data, [&] {
          failing.step(step, 40, [&](Net& net, Tape& tape, const ToyShard& shard) {
            if (shard.index == bad) throw DataError("shard {} is broken", bad);
            return plain_loss(net, tape, shard);
          });
        });
      }
    }
    failing.step(step);
    steady.step(step);
    BOOST_TEST(same_gradients(failing.gradients(), steady.gradients()));
  }
}

BOOST_AUTO_TEST_CASE(a_gradient_that_is_not_finite_is_passed_on_and_not_remembered) {
  Run shaken(thin), steady(thin);
  for (std::uint64_t step = 0; step < 6; ++step) {
    if (step >= 3) {
      shaken.step(step, step, [](Net& net, Tape& tape, const ToyShard& shard) {
        if (shard.index == 3) shard.x.data<float>()[2] = std::numeric_limits<float>::infinity();
        return plain_loss(net, tape, shard);
      });
      const std::vector<float> gradient = elements(shaken.net["in.weight"].gradient);
      BOOST_TEST(!std::all_of(gradient.begin(), gradient.end(), [](float g) { return std::isfinite(g); }));
    }
    shaken.step(step);
    steady.step(step);
    BOOST_TEST(same_gradients(shaken.gradients(), steady.gradients()));
  }
}

BOOST_AUTO_TEST_CASE(a_gradient_that_was_zero_for_long_is_not_lost_afterwards) {
  Run run(full);
  for (std::uint64_t step = 0; step < 8; ++step) {
    const bool uses_all = step >= 5;
    run.step(step, step, [&](Net& net, Tape& tape, const ToyShard& shard) {
      if (uses_all) return plain_loss(net, tape, shard);
      const Var h = relu(linear(tape.constant(shard.x), tape.use(net.params[0]), tape.use(net.params[1])));
      return mse(linear(net.with_nothing(tape, h), tape.use(net.params[3]), tape.use(net.params[4])),
                 shard.y);
    });
    if (!uses_all) continue;
    const Gradients wanted = reference(step, 6), found = run.gradients();
    for (std::size_t p = 0; p < wanted.size(); ++p)
      BOOST_TEST(distance(found[p], wanted[p]) < 1e-5, run.net.params[p].name);
  }
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
