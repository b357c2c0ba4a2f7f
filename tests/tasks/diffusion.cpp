// The diffusion task: what no file of guided-diffusion's numbers has a case for.
#include "lockstep/tasks/diffusion.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <numeric>
#include <span>
#include <vector>

#include "lockstep/autograd/functions.h"
#include "lockstep/base/error.h"
#include "lockstep/kernels/backend.h"
#include "support/mentions.h"

namespace lockstep::test {
namespace {

using namespace lockstep::tasks;
using boost::test_tools::tolerance;

/// Answers with a field of what it is given, and remembers that.
struct Echo final : Model {
  explicit Echo(std::int64_t input_classes = 0) : Model(1), known(input_classes) {}
  std::int64_t input_classes() const override { return known; }
  Shape sample_shape(std::int64_t image_size) const override {
    return any_size ? Shape{1, image_size, image_size} : Shape{1, 2, 2};
  }
  Var forward(Tape& tape, const Batch& batch) override {
    given = batch;
    return answer ? answer(tape, batch) : 0.5f * tape.batch(batch["x"]);
  }
  std::int64_t known;
  bool any_size = false;
  Batch given;
  std::function<Var(Tape&, const Batch&)> answer;
};

struct Images final : data::Dataset {
  explicit Images(std::vector<data::Field> fields) : all(std::move(fields)) {}
  std::int64_t size() const override { return 1; }
  const std::vector<data::Field>& fields() const override { return all; }
  std::string name() const override { return "made.h5"; }
  void read(std::span<const std::int64_t>, std::span<const Tensor>) const override {}
  std::vector<data::Field> all;
};

std::vector<float> values_of(const Tensor& tensor) {
  return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
}

Tensor normals(const Shape& shape, std::string_view purpose) {
  const Tensor made = Tensor::empty(shape);
  const Random random({.seed = 5, .purpose = purpose_of(purpose)});
  for (std::int64_t i = 0; i < made.numel(); ++i)
    made.data<float>()[i] = random.normal(static_cast<std::uint64_t>(i));
  return made;
}

Batch images_of(std::int64_t samples, int index = 0) {
  const Tensor y = Tensor::zeros({samples}, DType::int64);
  return Batch(index, {{"x", normals({samples, 1, 2, 2}, "x")}, {"y", y}});
}

struct DiffusionFixture {
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  Tape tape{*backend};
};

BOOST_FIXTURE_TEST_SUITE(diffusion, DiffusionFixture)

BOOST_AUTO_TEST_CASE(respacing_takes_the_steps_that_guided_diffusion_takes) {
  using Steps = std::vector<std::int64_t>;
  BOOST_TEST(kept_steps(10, "") == (Steps{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  BOOST_TEST(kept_steps(10, "4") == (Steps{0, 3, 6, 9}));
  BOOST_TEST(kept_steps(10, "ddim5") == (Steps{0, 2, 4, 6, 8}));
  BOOST_TEST(kept_steps(10, "3,2") == (Steps{0, 2, 4, 5, 9}));
  BOOST_TEST(kept_steps(11, "1,2") == (Steps{0, 6, 10}));
  for (const char* const wrong : {"11", "ddim6", "ddim", "6,1", "0", "-1", "1.5", "3,", ",3", "many", "3 2"})
    BOOST_CHECK_THROW(kept_steps(10, wrong), UsageError);
  BOOST_CHECK_EXCEPTION(kept_steps(1000, "10,10,2000"), UsageError, [](const UsageError& error) {
    return std::string(error.what()) ==
           "steps 10,10,2000: part 3 of the 1000 steps has 333 steps, so 2000 cannot be kept";
  });
  for (const std::int64_t few : {2, 10, 19, 20})  // their last betas are 1 or more
    BOOST_CHECK_THROW(NoiseSchedule("linear", few), UsageError);
  BOOST_CHECK_THROW(NoiseSchedule("quadratic", 100), UsageError);
  BOOST_CHECK_THROW(NoiseSchedule("cosine", 100, "1"), UsageError);
  BOOST_TEST(NoiseSchedule("cosine", 2).size() == 2);
}

BOOST_AUTO_TEST_CASE(the_shortest_schedules_have_finite_numbers) {
  const auto check = [](const NoiseSchedule& schedule) {
    for (const std::vector<double>* const numbers :
         {&schedule.betas, &schedule.alphas_cumprod, &schedule.posterior_variance,
          &schedule.posterior_mean_coef1, &schedule.posterior_mean_coef2,
          &schedule.posterior_log_variance_clipped})
      for (const double number : *numbers) BOOST_TEST(std::isfinite(number));
    for (const double left : schedule.alphas_cumprod) BOOST_TEST(left > 0);  // x0 is divided by its root
    for (const double beta : schedule.betas) BOOST_TEST((beta > 0 && beta < 1));
  };
  check(NoiseSchedule("linear", 21));
  check(NoiseSchedule("linear", 21, "2"));
  for (std::int64_t steps = 2; steps < 25; ++steps) check(NoiseSchedule("cosine", steps));
  check(NoiseSchedule("cosine", 1000, "2"));
}

BOOST_AUTO_TEST_CASE(v_made_of_eps_means_the_same_image) {
  const NoiseSchedule schedule("cosine", 1000);
  const ReverseProcess of_eps(schedule, {.predict = Predict::eps}, {.clip = false}),
      of_v(schedule, {.predict = Predict::v}, {.clip = false}),
      of_x0(schedule, {.predict = Predict::x0}, {.clip = false});
  const std::vector<float> image = values_of(normals({200}, "image")),
                           noise = values_of(normals({200}, "eps"));
  for (std::int64_t t = 0; t < 1000; t += 37) {
    const double left = schedule.alphas_cumprod[static_cast<std::size_t>(t)];
    std::vector<float> x(200), v(200), found_by_eps(200), found_by_v(200), found_by_x0(200);
    for (std::size_t i = 0; i < 200; ++i) {
      x[i] = static_cast<float>(std::sqrt(left) * image[i] + std::sqrt(1 - left) * noise[i]);
      const double x0 = (x[i] - std::sqrt(1 - left) * noise[i]) / std::sqrt(left);
      v[i] = static_cast<float>(std::sqrt(left) * noise[i] - std::sqrt(1 - left) * x0);
    }
    of_eps.estimate_x0(t, x, noise, found_by_eps);
    of_v.estimate_x0(t, x, v, found_by_v);
    of_x0.estimate_x0(t, x, image, found_by_x0);
    BOOST_CHECK(found_by_x0 == image);
    double largest = 1;
    for (const float value : found_by_eps) largest = std::max(largest, std::abs(double{value}));
    const double room =
        std::max(1.0, 0.05 / std::sqrt(left));  // eps says less about x0 where noise is strong
    for (std::size_t i = 0; i < 200; ++i)
      BOOST_TEST(std::abs(found_by_v[i] - found_by_eps[i]) <= 1e-5 * largest * room, "t " << t);
  }
}

/// The noise in x of which each element is -0.7 or 0.4, with a deviation of 0.3, before noise: exactly.
Tensor noise_in(const Tensor& x, double left) {
  const Tensor noise = Tensor::empty(x.shape());
  const double variance = left * 0.09 + 1 - left;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const double value = x.data<float>()[i];
    double sum = 0, mean = 0;
    for (const double centre : {-0.7, 0.4}) {
      const double off = value - std::sqrt(left) * centre;
      const double weight = std::exp(-0.5 * off * off / variance);
      sum += weight;
      mean += weight * (centre + std::sqrt(left) * 0.09 / variance * off);
    }
    noise.data<float>()[i] = static_cast<float>((value - std::sqrt(left) * mean / sum) / std::sqrt(1 - left));
  }
  return noise;
}

BOOST_AUTO_TEST_CASE(twenty_steps_of_dpmpp_2m_are_nearer_to_a_thousand_of_ddim_than_twenty_of_ddim) {
  for (const char* const name : {"linear", "cosine"}) {
    const NoiseSchedule all(name, 1000);
    const Tensor start = normals({50, 1, 2, 2}, "start");
    const auto end_of = [&](Sampler sampler, const char* steps) {
      const ReverseProcess process(NoiseSchedule(name, 1000, steps), {}, {.sampler = sampler});
      return process.run(start, {.network =
                                     [&](const Tensor& x, std::int64_t step) {
                                       return noise_in(x, all.alphas_cumprod[static_cast<std::size_t>(step)]);
                                     },
                                 .draw = [](std::int64_t, const Tensor&) { BOOST_ERROR("draws noise"); }});
    };
    const Tensor exact = end_of(Sampler::ddim, ""), ddim = end_of(Sampler::ddim, "20"),
                 solver = end_of(Sampler::dpmpp_2m, "20");
    const auto distance = [&](const Tensor& found) {
      double squares = 0;
      for (std::int64_t i = 0; i < found.numel(); ++i)
        squares += std::pow(found.data<float>()[i] - exact.data<float>()[i], 2);
      return std::sqrt(squares / static_cast<double>(found.numel()));
    };
    BOOST_TEST_MESSAGE(name << ": dpmpp_2m " << distance(solver) << ", ddim " << distance(ddim));
    BOOST_TEST(distance(solver) < 0.5 * distance(ddim), name);
  }
}

BOOST_AUTO_TEST_CASE(min_snr_weights_are_those_of_the_formula) {
  const NoiseSchedule schedule("cosine", 100);
  for (const double gamma : {5.0, 1.0}) {
    const auto loss_for = [&](Predict predict) {
      return DiffusionLoss(schedule, {.predict = predict}, Objective::mse, gamma);
    };
    const DiffusionLoss eps = loss_for(Predict::eps), x0 = loss_for(Predict::x0), v = loss_for(Predict::v);
    for (std::int64_t t = 0; t < 100; ++t) {
      const double left = schedule.alphas_cumprod[static_cast<std::size_t>(t)], snr = left / (1 - left);
      BOOST_TEST(eps.weight(t) == std::min(gamma, snr) / snr, tolerance(1e-14));
      BOOST_TEST(x0.weight(t) == std::min(gamma, snr), tolerance(1e-14));
      BOOST_TEST(v.weight(t) == std::min(gamma, snr) / (snr + 1), tolerance(1e-14));
    }
    // And they are applied.
    std::vector<std::int64_t> t{3, 50, 99};
    const NoisedImages images{.x0 = normals({3, 1, 2, 2}, "x"),
                              .noise = normals({3, 1, 2, 2}, "noise"),
                              .t = Tensor::view(t.data(), {3}, DType::int64)};
    tape.begin({.training = false, .record = false});
    const DiffusionLoss::Terms terms = v.of(tape.constant(normals({3, 1, 2, 2}, "output")), images);
    for (std::size_t n = 0; n < 3; ++n)
      BOOST_TEST(
          double{terms.loss.value().data<float>()[n]} == v.weight(t[n]) * terms.mse.value().data<float>()[n],
          tolerance(1e-6));
  }
  BOOST_TEST(DiffusionLoss(schedule, {}, Objective::mse).weight(50) == 1);
}

BOOST_AUTO_TEST_CASE(the_decoder_keeps_the_bits_that_float32_leaves_of_a_tail) {
  // As guided-diffusion computes it, with a tanh that is rounded correctly. Estimates are up to six
  // deviations off.
  const NoiseSchedule schedule("linear", 1000);
  const Tensor t = Tensor::zeros({100}, DType::int64);
  const Shape shape{100, 48};
  const Tensor image = Tensor::empty(shape), estimate = Tensor::empty(shape);
  const std::vector<float> drawn = values_of(normals(shape, "image")), off = values_of(normals(shape, "off"));
  for (std::int64_t i = 0; i < image.numel(); ++i) {
    image.data<float>()[i] = std::clamp(0.8f * drawn[static_cast<std::size_t>(i)], -1.0f, 1.0f);
    estimate.data<float>()[i] = image.data<float>()[i] + 0.013f * off[static_cast<std::size_t>(i)];
  }
  const DiffusionLoss loss(schedule, {.predict = Predict::x0, .variance = Variance::fixed_small},
                           Objective::kl);
  tape.begin({.training = false, .record = false});
  const std::vector<float> found = values_of(
      loss.of(tape.constant(estimate), {.x0 = image, .noise = normals(shape, "noise"), .t = t}).vb.value());

  const auto cumulative = [](float x) {
    const float u = 0.797884561f * (x + 0.044715f * (x * x * x));
    return 0.5f * (1.0f + static_cast<float>(std::tanh(double{u})));
  };
  const float inverse = std::exp(-0.5f * static_cast<float>(schedule.posterior_log_variance_clipped[0]));
  for (std::size_t n = 0; n < 100; ++n) {
    double sum = 0;
    for (std::size_t i = 48 * n; i < 48 * (n + 1); ++i) {
      const float x = image.data<float>()[i], centred = x - estimate.data<float>()[i];
      const float above = cumulative(inverse * (centred + 1.0f / 255)),
                  below = cumulative(inverse * (centred - 1.0f / 255));
      const float probability = x < -0.999f ? above : x > 0.999f ? 1.0f - below : above - below;
      sum -= std::log(double{std::max(probability, 1e-12f)});
    }
    BOOST_TEST(double{found[n]} == sum / 48 / std::log(2.0), tolerance(1e-5));
  }
}

BOOST_AUTO_TEST_CASE(times_are_drawn_by_the_second_moments_of_their_last_losses) {
  constexpr std::int64_t steps = 7;
  LossSecondMoment sampler(steps);
  const Random random({.seed = 3, .purpose = purpose_of("losses")});
  std::vector<std::vector<double>> losses(steps);  // all of each time
  std::uint64_t element = 0;
  const auto add = [&](std::int64_t t) {
    const double loss = random.uniform(element++) * static_cast<double>(t + 1);
    losses[static_cast<std::size_t>(t)].push_back(loss);
    sampler.add(t, loss);
  };
  for (int i = 0; i < 9; ++i)
    for (std::int64_t t = 0; t < steps; ++t) add(t);
  for (std::int64_t t = 1; t < steps; ++t) add(t);
  sampler.update();  // one time has nine losses: uniform still
  for (const double probability : sampler.probabilities()) BOOST_TEST(probability == 1.0 / steps);
  BOOST_TEST(sampler.weight(3) == 1, tolerance(1e-12));
  for (int i = 0; i < 25; ++i) add((i * i + 2 * i) % steps);
  add(0);
  sampler.update();

  // improved-diffusion, resample.py: LossSecondMomentResampler.
  std::vector<double> weights;
  for (const std::vector<double>& all : losses) {
    double squares = 0;
    for (auto loss = all.end() - 10; loss != all.end(); ++loss) squares += *loss * *loss;
    weights.push_back(std::sqrt(squares / 10));
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double before = 0;
  for (std::size_t t = 0; t < steps; ++t) {
    const double probability = weights[t] / sum * (1 - 0.001) + 0.001 / steps;
    BOOST_TEST(sampler.probabilities()[t] == probability, tolerance(1e-12));
    BOOST_TEST(sampler.weight(static_cast<std::int64_t>(t)) == 1 / (steps * probability), tolerance(1e-12));
    before += probability;
    BOOST_TEST(sampler.sums().data<double>()[t] == before, tolerance(1e-12));
  }
  BOOST_CHECK_THROW(sampler.add(steps, 1), UsageError);

  // The state is all of it.
  LossSecondMoment copy(steps);
  const auto from = sampler.state(), to = copy.state();
  for (std::size_t i = 0; i < from.size(); ++i) kernels::transfer(from[i].second, to[i].second, nullptr);
  copy.update();
  BOOST_CHECK(copy.probabilities() == sampler.probabilities());
}

/// With the image itself as the estimate and the variances alike but for their kind, the bound is their
/// divergence alone.
BOOST_AUTO_TEST_CASE(the_bound_compares_the_configured_variance_with_that_of_the_posterior) {
  const NoiseSchedule schedule("cosine", 50);
  const Shape shape{1, 1, 2, 2};
  for (const Variance variance : {Variance::fixed_small, Variance::fixed_large}) {
    const DiffusionLoss loss(schedule, {.predict = Predict::x0, .variance = variance}, Objective::kl);
    const LogVariances variances = log_variances(schedule, variance);
    for (const std::int64_t t : {1, 20, 49}) {
      const Tensor x0 = normals(shape, "x"), steps = Tensor::zeros({1}, DType::int64);
      *steps.data<std::int64_t>() = t;
      tape.begin({.training = false, .record = false});
      const Var found =
          loss.of(tape.constant(x0), {.x0 = x0, .noise = normals(shape, "noise"), .t = steps}).vb;
      const auto at = static_cast<std::size_t>(t);
      const double d = schedule.posterior_log_variance_clipped[at] - variances.high[at],
                   wanted = 0.5 * (std::exp(d) - 1 - d) / std::log(2.0);
      BOOST_TEST(std::abs(double{found.value().data<float>()[0]} - wanted) <= 1e-4 * wanted + 1e-7);
    }
  }
}

BOOST_AUTO_TEST_CASE(draws_depend_on_seed_step_shard_and_sample_and_on_nothing_else) {
  Diffusion task({.time = "loss_second_moment", .class_dropout = 0.5});
  Echo model(3);
  const auto given = [&](Pass pass, std::int64_t samples = 4) {
    tape.begin(pass);
    (void)task(tape, model, images_of(samples));
    std::vector<float> all = values_of(model.given["x"]);
    for (const float t : values_of(model.given["t"])) all.push_back(t);
    for (std::int64_t n = 0; n < samples; ++n)
      all.push_back(model.given["has_class"].data<std::uint8_t>()[n]);
    return all;
  };
  const Pass pass{.record = false, .seed = 1, .step = 5, .shard = 2};
  const std::vector<float> once = given(pass);
  BOOST_CHECK(given(pass) == once);
  for (const Pass& other : {Pass{.record = false, .seed = 2, .step = 5, .shard = 2},
                            Pass{.record = false, .seed = 1, .step = 6, .shard = 2},
                            Pass{.record = false, .seed = 1, .step = 5, .shard = 3}})
    BOOST_CHECK(given(other) != once);
  const std::vector<float> fewer = given(pass, 2);  // of the same samples
  BOOST_CHECK(std::equal(fewer.begin(), fewer.begin() + 2 * 4, once.begin()));
}

BOOST_AUTO_TEST_CASE(classes_are_withheld_in_training_as_often_as_asked_and_never_in_evaluations) {
  Diffusion task({.class_dropout = 0.25});
  Echo model(3);
  tape.begin({.record = false});
  (void)task(tape, model, images_of(2000));
  const std::uint8_t* const has = model.given["has_class"].data<std::uint8_t>();
  BOOST_TEST(std::abs(std::accumulate(has, has + 2000, 0.0) / 2000 - 0.75) < 0.04);
  tape.begin({.training = false, .record = false});
  (void)task(tape, model, images_of(3));
  BOOST_TEST(!model.given.has("has_class"));
  BOOST_TEST(model.given.has("y"));
  Echo without;
  Diffusion plain({});
  (void)plain(tape, without, images_of(3));
  BOOST_TEST(!without.given.has("y"));
}

BOOST_AUTO_TEST_CASE(micro_batches_of_a_step_draw_by_the_same_probabilities) {
  Diffusion task({.steps = 30, .time = "loss_second_moment"});
  Echo model;
  const auto times = [&](std::uint64_t step, std::uint32_t shard = 0) {
    tape.begin({.record = false, .seed = 1, .step = step, .shard = shard});
    (void)task(tape, model, images_of(200));
    return values_of(model.given["t"]);
  };
  std::vector<double> losses;
  for (int i = 0; i < 10; ++i)
    for (int t = 0; t < 30; ++t) losses.insert(losses.end(), {double(t), t < 3 ? 100.0 : 0.001});
  const std::vector<float> uniform = times(4);
  task.after_step(losses);  // as none is between the passes of a step
  BOOST_CHECK(times(4) == uniform);
  times(4, 1);
  std::vector<double> taken;
  task.take_numbers(taken);  // the step ends
  BOOST_TEST(taken.size() == 800U);
  const std::vector<float> next = times(4);
  BOOST_CHECK(next != uniform);
  BOOST_TEST(std::ranges::count_if(next, [](float t) { return t < 3; }) > 190);
}

BOOST_AUTO_TEST_CASE(importance_weights_leave_the_expected_loss_as_it_is) {
  Diffusion task({.schedule = "cosine", .steps = 20, .time = "loss_second_moment"});
  std::vector<double> numbers;
  for (int i = 0; i < 10; ++i)
    for (int t = 0; t < 20; ++t) numbers.insert(numbers.end(), {double(t), 1.0 + t});
  task.after_step(numbers);
  // An output of zeros: the loss is the mean of the squared noise, whatever t is.
  Echo model;
  model.answer = [](Tape& t, const Batch& batch) { return 0.0f * t.batch(batch["x"]); };
  tape.begin({.record = false});
  const Loss loss = task(tape, model, images_of(4000));
  BOOST_TEST(loss.read().sum / loss.read().count == 1, tolerance(0.1));
  BOOST_TEST(loss.read().count == 4000);
  std::vector<double> found;
  task.take_numbers(found);
  BOOST_REQUIRE(found.size() == 8000U);
  double above = 0;
  for (std::size_t i = 0; i < found.size(); i += 2) above += found[i] >= 10;
  BOOST_TEST(above / 4000 == 155.0 / 210, tolerance(0.06));  // of the greater losses
  std::vector<double> again;
  task.take_numbers(again);  // a launched graph asks for no loss()
  BOOST_TEST(again == found);
}

BOOST_AUTO_TEST_CASE(quarters_of_the_steps_make_up_the_loss_and_evaluations_repeat) {
  Diffusion task({.schedule = "cosine", .steps = 40});
  Echo model;
  std::vector<Metric> metrics{{.name = "loss"}};
  for (Metric& metric : task.metrics()) metrics.push_back(std::move(metric));
  BOOST_REQUIRE(metrics.size() == 5U);
  const auto sums = [&](int chunk) {
    tape.begin({.training = false, .record = false});
    const Batch batch = images_of(64, chunk);
    Evaluation evaluation(metrics, task(tape, model, batch));
    task.evaluate(evaluation, batch, model.take_output());
    return std::vector<double>(evaluation.sums().begin(), evaluation.sums().end());
  };
  const std::vector<double> found = sums(0);
  BOOST_TEST(found[2] + found[4] + found[6] + found[8] == found[0], tolerance(1e-5));
  BOOST_TEST(found[3] + found[5] + found[7] + found[9] == 64);
  for (const std::size_t quarter : {3, 5, 7, 9}) BOOST_TEST(found[quarter] > 4);
  BOOST_CHECK(sums(0) == found);
  BOOST_CHECK(sums(1) != found);  // another chunk draws others
}

BOOST_AUTO_TEST_CASE(a_sample_depends_on_its_number_and_class_alone) {
  for (const char* const sampler : {"ddpm", "ddim", "dpmpp_2m"}) {
    Diffusion task({.variance = Variance::fixed_small});
    Echo model(10);
    model.answer = [](Tape& t, const Batch& batch) {  // an image that is twice as bright in class 1
      const Tensor brightness = Tensor::empty({batch.samples(), 1, 1, 1});
      for (std::int64_t n = 0; n < batch.samples(); ++n)
        brightness.data<float>()[n] = 0.5f - 0.1f * static_cast<float>(batch["y"].data<std::int64_t>()[n]);
      return t.constant(brightness) * t.batch(batch["x"]);
    };
    const SampleOptions options{
        .sampler = sampler, .steps = "8", .eta = std::string(sampler) == "ddim" ? 0.7 : 0, .seed = 9};
    std::int64_t steps = 0;
    const auto samples = [&](std::int64_t first, std::vector<std::int64_t> classes, const SampleOptions& by) {
      return values_of(task.sample(model, *backend, by, first, classes, [&] { ++steps; }));
    };
    const std::vector<float> all = samples(5, {0, 1, 2, 1}, options);
    BOOST_TEST(steps == 8);
    BOOST_TEST(task.sampling_steps(options) == 8);
    const std::vector<float> last = samples(7, {2, 1}, options);
    BOOST_CHECK(std::equal(last.begin(), last.end(), all.begin() + 8));
    BOOST_CHECK(samples(7, {2, 0}, options) != last);
    SampleOptions other = options;
    other.seed = 10;
    BOOST_CHECK(samples(7, {2, 1}, other) != last);
  }
}

BOOST_AUTO_TEST_CASE(guidance_goes_from_no_class_through_the_class) {
  Diffusion task({.predict = Predict::x0, .class_dropout = 0.1});
  Echo model(4);
  model.answer = [](Tape& t, const Batch& batch) {  // 0.1 for no class, 0.1 more for each class
    const Tensor x0 = Tensor::empty(batch["x"].shape());
    for (std::int64_t i = 0; i < x0.numel(); ++i) {
      const std::int64_t n = i / 4, y = batch["y"].data<std::int64_t>()[n];
      x0.data<float>()[i] = batch["has_class"].data<std::uint8_t>()[n] == 0 ? 0.1f : 0.2f + 0.1f * float(y);
    }
    return t.constant(x0);
  };
  const auto sample = [&](double guidance, std::int64_t asked) {
    const std::vector<std::int64_t> classes{asked};
    return values_of(task.sample(model, *backend, {.sampler = "ddim", .steps = "5", .guidance = guidance}, 0,
                                 classes, {}))[0];
  };
  BOOST_TEST(sample(1, 2) == 0.4f, tolerance(1e-5f));
  BOOST_TEST(sample(2, 2) == 0.7f, tolerance(1e-5f));
  BOOST_TEST(sample(0, 2) == 0.1f, tolerance(1e-5f));
  BOOST_TEST(sample(1, -1) == 0.1f, tolerance(1e-5f));
  BOOST_TEST(sample(9, 2) == 1.0f);  // clamped
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_is_refused_by_name) {
  const auto refused = [](const auto& action, const char* text) {
    BOOST_CHECK_EXCEPTION(action(), Error, mentions(text));
  };
  const auto made = [](Diffusion::Options options) { return [options] { (void)Diffusion(options); }; };
  refused(made({.steps = 10}), "diffusion.steps = 10");
  refused(made({.steps = 20}), "diffusion.steps = 20");
  refused(made({.loss = Objective::kl, .min_snr = 5}), "diffusion.min_snr = 5");
  const auto checked = [](Diffusion::Options options, std::int64_t classes, std::vector<data::Field> fields) {
    return [=] { Diffusion(options).check(Echo(classes), Images(fields)); };
  };
  const data::Field x{.name = "x", .shape = {1, 2, 2}},
      y{.name = "y", .dtype = DType::int64, .shape = {}, .classes = 3};
  checked({}, 3, {x, y})();
  refused(checked({}, 0, {{.name = "x", .dtype = DType::int64, .shape = {1, 2, 2}}}), "field x is int64");
  refused(checked({}, 3, {x}), "y");
  refused(checked({}, 3, {x, {.name = "y", .shape = {}}}), "field y is float32");
  refused(checked({}, 2, {x, y}), "the model has 2 classes");
  refused(checked({.class_dropout = 0.1}, 0, {x}), "diffusion.class_dropout = 0.1");
  const data::Field larger{.name = "x", .shape = {1, 4, 4}};
  refused(
      checked({}, 0, {larger}),
      "made.h5: images are [1, 4, 4], but those of the model are [1, 2, 2]: [channels, height, width]; set "
      "model.image_size to the side of the data");
  Echo of_any_size;
  of_any_size.any_size = true;
  Diffusion({}).check(of_any_size, Images({larger}));

  Diffusion task({});
  const auto sampled = [&](SampleOptions options, std::int64_t classes) {
    return [&task, options, classes] { task.check_sampling(Echo(classes), options); };
  };
  refused(sampled({.sampler = "euler"}, 0), "euler");
  refused(sampled({.eta = 0.5}, 0), "eta 0.5");
  refused(sampled({.sampler = "ddim", .eta = 2}, 0), "eta: \"2\" is not a number in [0, 1]");
  refused(sampled({.steps = "2000"}, 0), "2000");
  refused(sampled({.guidance = 2}, 0), "guidance 2: the model takes no classes");
  refused(sampled({.guidance = 2}, 3), "diffusion.class_dropout = 0");
  const auto of_class = [&](std::int64_t asked, std::int64_t classes) {
    return [&, asked, classes] {
      Echo model(classes);
      const std::vector<std::int64_t> all{asked};
      (void)task.sample(model, *backend, {.steps = "2"}, 0, all, {});
    };
  };
  refused(of_class(0, 0), "class 0: the model takes no classes");
  refused(of_class(3, 3), "class 3: is not one of the model's 3 classes");
  refused(of_class(-1, 3), "select a class");
  Diffusion learned({.variance = Variance::learned_range});
  Echo model;
  tape.begin({.record = false});
  refused([&] { (void)learned(tape, model, images_of(2)); }, "with a learned variance need [2, 2, 2, 2]");
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
