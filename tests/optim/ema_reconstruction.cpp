// Averages after training: mixtures of stored ones stand for others that were never tracked.
#include "lockstep/optim/ema.h"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <map>
#include <numeric>

#include "optim/made_up_model.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(ema_reconstruction)

using namespace optim;

PowerResponse response(double sigma_rel, std::int64_t updates) {
  return response_of(EmaProfile::power(sigma_rel), updates);
}

double value_at(const PowerResponse& response, double tau) {
  if (tau > response.updates) return 0;
  return (response.gamma + 1) / response.updates * std::pow(tau / response.updates, response.gamma);
}

/// By Simpson's rule; the responses' ends must be on multiples of `last` / 1000.
template <class Function>
double integral(const Function& function, double last) {
  constexpr int cells = 1000;
  double sum = 0;
  for (int cell = 0; cell < cells; ++cell) {
    const double from = last * cell / cells, to = last * (cell + 1) / cells, width = to - from;
    const double inside = 1e-12 * width;  // a response ends at its end, not after it
    sum += width / 6 * (function(from + inside) + 4 * function((from + to) / 2) + function(to - inside));
  }
  return sum;
}

/// |mixture - target| / |target| without the closed form.
double error_by_quadrature(const std::vector<PowerResponse>& stored, const std::vector<double>& weights,
                           const PowerResponse& target) {
  const double off = integral(
      [&](double tau) {
        double difference = -value_at(target, tau);
        for (std::size_t i = 0; i < stored.size(); ++i) difference += weights[i] * value_at(stored[i], tau);
        return difference * difference;
      },
      target.updates);
  return std::sqrt(off / integral(
                             [&](double tau) {
                               const double value = value_at(target, tau);
                               return value * value;
                             },
                             target.updates));
}

/// Of both widths at times evenly spaced up to `last`.
std::vector<PowerResponse> evenly(int times, std::int64_t last, std::vector<double> widths = {0.05, 0.10}) {
  std::vector<PowerResponse> stored;
  for (int i = 1; i <= times; ++i)
    for (const double width : widths) stored.push_back(response(width, last * i / times));
  return stored;
}

double sum(const std::vector<double>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0);
}

/// A parameter on its way; averages of every width in `widths` are tracked, and kept at times evenly spaced.
struct Trajectory {
  static constexpr std::int64_t updates = 800, elements = 20000;
  enum class Kind { training, noise };
  std::map<double, std::map<std::int64_t, std::vector<float>>> kept;  // by width and updates
  std::vector<float> last;

  Trajectory(Kind kind, const std::vector<double>& widths, int times, std::uint64_t seed) {
    MadeUpModel model(seed);
    Param& param = model.add("weight", {elements});
    std::vector<EmaProfile> profiles;
    for (const double width : widths) profiles.push_back(EmaProfile::power(width));
    Ema ema(model.state(), model.backend(), profiles);
    for (std::int64_t n = 1; n <= updates; ++n) {
      const Tensor draw = normal({elements}, seed, "move", static_cast<std::uint64_t>(n));
      // Training: towards a goal that the first steps reach halfway, in steps that shrink, among noise.
      const double rate = 1 / (1 + static_cast<double>(n) / 50);
      for (std::int64_t i = 0; i < elements; ++i) {
        float& value = param.value.data<float>()[i];
        const float noise = draw.data<float>()[i];
        value = kind == Kind::noise
                    ? noise
                    : value + static_cast<float>(0.02 * rate * (1.0 - static_cast<double>(value)) +
                                                 0.1 * std::sqrt(rate) * static_cast<double>(noise));
      }
      ema.update();
      if (n % (updates / times) != 0) continue;
      for (const EmaProfile& profile : profiles)
        kept[profile.parameter()][n] = values(ema.tensor(profile.name(), "weight"));
    }
    last = values(param.value);
  }

  const std::vector<float>& tracked(double width, std::int64_t at = updates) const {
    return kept.at(width).at(at);
  }

  struct Mixed {
    std::vector<float> values;
    double promised;  // EmaMixture::error
  };
  /// From what was kept of the widths `from` up to `at`.
  Mixed reconstruct(double width, const std::vector<double>& from, std::int64_t at = updates) const {
    std::vector<PowerResponse> stored;
    std::vector<const std::vector<float>*> sources;
    for (const double source : from) {
      for (const auto& [n, average] : kept.at(source)) {
        if (n > at) continue;
        stored.push_back(response(source, n));
        sources.push_back(&average);
      }
    }
    const EmaMixture mixture = EmaReconstruction(stored).mixture_for(response(width, at));
    Mixed mixed{std::vector<float>(static_cast<std::size_t>(elements)), mixture.error};
    for (std::size_t i = 0; i < mixed.values.size(); ++i) {
      double value = 0;
      for (std::size_t s = 0; s < sources.size(); ++s)
        value += mixture.weights[s] * static_cast<double>((*sources[s])[i]);
      mixed.values[i] = static_cast<float>(value);
    }
    return mixed;
  }
};

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i) squares += std::pow(static_cast<double>(a[i]) - b[i], 2);
  return std::sqrt(squares);
}

double length(const std::vector<float>& a) { return distance(a, std::vector<float>(a.size())); }

constexpr std::uint64_t seed = 20240607;

BOOST_AUTO_TEST_CASE(a_response_integrates_to_the_weight_of_each_update) {
  const EmaProfile profile = EmaProfile::power(0.1);
  const std::int64_t updates = 40;
  const PowerResponse whole = response_of(profile, updates);
  double rest = 1;  // product of the decays of later updates
  for (std::int64_t k = updates; k >= 1; --k) {
    const double weight = (1 - profile.decay(k)) * rest, end = static_cast<double>(k);
    const double integral =
        std::pow(end / whole.updates, whole.gamma + 1) - std::pow((end - 1) / whole.updates, whole.gamma + 1);
    BOOST_TEST(std::abs(weight - integral) < 1e-15);
    rest *= profile.decay(k);
  }
}

BOOST_AUTO_TEST_CASE(inner_products_are_the_integrals_of_products) {
  for (const double sigma_a : {0.05, 0.1, 0.2}) {
    for (const double sigma_b : {0.05, 0.15}) {
      for (const std::int64_t updates_a : {300, 1000, 2000}) {
        const PowerResponse a = response(sigma_a, updates_a), b = response(sigma_b, 1000);
        const double expected =
            integral([&](double tau) { return value_at(a, tau) * value_at(b, tau); }, 2000);
        BOOST_TEST(std::abs(inner_product(a, b) / expected - 1) < 2e-6);
        BOOST_TEST(inner_product(a, b) == inner_product(b, a));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(time_has_no_unit) {
  std::vector<PowerResponse> steps = evenly(8, 800), millions = evenly(8, 800'000'000);
  const EmaMixture a = EmaReconstruction(steps).mixture_for(response(0.15, 800)),
                   b = EmaReconstruction(millions).mixture_for(response(0.15, 800'000'000));
  BOOST_TEST(std::abs(a.error - b.error) < 1e-9);
  for (std::size_t i = 0; i < a.weights.size(); ++i) BOOST_TEST(std::abs(a.weights[i] - b.weights[i]) < 1e-9);
}

BOOST_AUTO_TEST_CASE(a_stored_average_is_itself) {
  const std::vector<PowerResponse> stored = evenly(8, 800);
  const EmaReconstruction reconstruction(stored);
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const EmaMixture mixture = reconstruction.mixture_for(stored[i]);
    BOOST_TEST(mixture.error == 0);
    for (std::size_t k = 0; k < stored.size(); ++k) BOOST_TEST(mixture.weights[k] == (k == i ? 1.0 : 0.0));
  }
}

BOOST_AUTO_TEST_CASE(weights_add_up_to_one) {
  const EmaReconstruction reconstruction(evenly(16, 1600));
  for (const double width : {0.03, 0.07, 0.12, 0.15, 0.2, 0.25})
    BOOST_TEST(std::abs(sum(reconstruction.mixture_for(response(width, 1600)).weights) - 1) < 1e-12);
}

BOOST_AUTO_TEST_CASE(the_error_is_what_quadrature_finds_and_no_other_mixture_has_less) {
  const std::vector<PowerResponse> stored = evenly(8, 800);
  const EmaReconstruction reconstruction(stored);
  for (const double width : {0.03, 0.07, 0.15, 0.25}) {
    const PowerResponse target = response(width, 800);
    const EmaMixture best = reconstruction.mixture_for(target);
    const double least = error_by_quadrature(stored, best.weights, target);
    BOOST_TEST(std::abs(best.error - least) < 1e-6);
    for (std::uint64_t change = 0; change < 20; ++change) {
      const std::vector<float> move =
          values(normal({static_cast<std::int64_t>(stored.size())}, seed, "change", change));
      std::vector<double> other = best.weights;
      for (std::size_t i = 0; i < other.size(); ++i) other[i] += 0.01 * static_cast<double>(move[i]);
      const double others = sum(other);
      for (double& weight : other) weight /= others;
      BOOST_TEST(error_by_quadrature(stored, other, target) > least);
    }
  }
}

BOOST_AUTO_TEST_CASE(more_snapshots_and_more_widths_come_closer) {
  const auto error = [](const std::vector<PowerResponse>& stored, double width) {
    return EmaReconstruction(stored).mixture_for(response(width, 64000)).error;
  };
  for (const double width : {0.03, 0.07, 0.15}) {
    double before = 1;
    for (const int times : {4, 8, 16, 32, 64, 128}) {
      const double now = error(evenly(times, 64000), width);
      BOOST_TEST(now < before);
      before = now;
    }
    BOOST_TEST(error(evenly(8, 64000, {0.05, 0.1, 0.2}), width) < error(evenly(8, 64000), width));
    BOOST_TEST(error(evenly(8, 64000), width) < error(evenly(8, 64000, {0.05}), width));
  }
}

BOOST_AUTO_TEST_CASE(snapshots_that_are_nearly_equal_do_no_harm) {
  std::vector<PowerResponse> stored = evenly(64, 1'000'000);
  for (std::int64_t i = 1; i <= 400; ++i) {  // a step apart, as when a run was stopped again and again
    for (const double width : {0.05, 0.10}) stored.push_back(response(width, 500'000 + i));
  }
  const EmaMixture crowded = EmaReconstruction(stored).mixture_for(response(0.15, 1'000'000)),
                   usual = EmaReconstruction(evenly(64, 1'000'000)).mixture_for(response(0.15, 1'000'000));
  BOOST_TEST(crowded.error <= usual.error * 1.01);
  double magnitude = 0;
  for (const double weight : crowded.weights) magnitude += std::abs(weight);
  BOOST_TEST(magnitude < 10);  // or rounding of the stored averages would show
}

BOOST_AUTO_TEST_CASE(reconstructed_averages_are_those_tracked_directly) {
  BOOST_TEST_MESSAGE("seed " << seed);
  const std::vector<double> stored{0.05, 0.10}, others{0.04, 0.07, 0.12, 0.15, 0.2};
  std::vector<double> all = stored;
  all.insert(all.end(), others.begin(), others.end());
  for (const int times : {8, 16}) {
    const Trajectory run(Trajectory::Kind::training, all, times, seed);
    for (const double width : others) {
      const std::vector<float>& tracked = run.tracked(width);
      const Trajectory::Mixed mixed = run.reconstruct(width, stored);
      const double relative = distance(mixed.values, tracked) / length(tracked);
      BOOST_TEST_MESSAGE(times << " snapshots, sigma_rel " << width << ": relative error " << relative
                               << ", of the response " << mixed.promised);
      BOOST_TEST(relative < 1e-2);
      // and it is that average, not just some weights nearby
      for (const double near : stored)
        BOOST_TEST(distance(mixed.values, tracked) < 0.2 * distance(run.tracked(near), tracked));
      BOOST_TEST(distance(mixed.values, tracked) < 0.05 * distance(run.last, tracked));
    }
    for (const double width : stored)
      BOOST_TEST((run.reconstruct(width, stored).values == run.tracked(width)));
  }
}

BOOST_AUTO_TEST_CASE(an_earlier_moment_needs_what_was_kept_until_then) {
  const Trajectory run(Trajectory::Kind::training, {0.05, 0.10, 0.15}, 16, seed);
  const std::vector<float>& tracked = run.tracked(0.15, 500);
  const Trajectory::Mixed mixed = run.reconstruct(0.15, {0.05, 0.10}, 500);
  BOOST_TEST(distance(mixed.values, tracked) < 1e-2 * length(tracked));
}

BOOST_AUTO_TEST_CASE(for_independent_weights_the_promised_error_is_the_real_one) {
  BOOST_TEST_MESSAGE("seed " << seed);
  const Trajectory run(Trajectory::Kind::noise, {0.05, 0.10, 0.03, 0.07, 0.2}, 8, seed);
  for (const double width : {0.03, 0.07, 0.2}) {
    const std::vector<float>& tracked = run.tracked(width);
    const Trajectory::Mixed mixed = run.reconstruct(width, {0.05, 0.10});
    const double relative = distance(mixed.values, tracked) / length(tracked);
    BOOST_TEST_MESSAGE("sigma_rel " << width << ": promised " << mixed.promised << ", found " << relative);
    BOOST_TEST(std::abs(relative / mixed.promised - 1) < 0.05);
  }
}

BOOST_AUTO_TEST_CASE(what_is_no_power_function_is_refused) {
  BOOST_CHECK_EXCEPTION(response_of(EmaProfile(0.99), 10), UsageError, mentions("0.99", "plain rate"));
  BOOST_CHECK_EXCEPTION(response_of(EmaProfile::power(0.1), 0), UsageError, mentions("0 updates"));
  BOOST_CHECK_THROW(EmaReconstruction({}), UsageError);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
