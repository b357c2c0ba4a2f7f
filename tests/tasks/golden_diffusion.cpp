// Schedules, losses and sampling chains against guided-diffusion (golden/diffusion.py), on the CPU or on a
// GPU: the cases schedule/NAME, loss/NAME and sample/NAME in diffusion*.h5.
#include <boost/test/unit_test.hpp>
#include <map>

#include "lockstep/autograd/functions.h"
#include "lockstep/tasks/diffusion_loss.h"
#include "lockstep/tasks/task.h"
#include "support/backend_under_test.h"
#include "support/golden.h"
#include "support/golden_unet.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(golden_diffusion, *golden())

using namespace lockstep::tasks;

constexpr Tolerance schedule_tolerance{.relative = 1e-12}, term_tolerance{.relative = 1e-5},
    gradient_tolerance{.of_largest = 2e-5, .relative = 1e-4, .smallest_largest = 1},
    chain_tolerance{.of_largest = 1e-4, .smallest_largest = 1};

void expect(const GoldenCase& golden, const std::string& name, const Tensor& found, const Tolerance& within) {
  const std::string text = mismatch(golden, name, found, within);
  BOOST_CHECK_MESSAGE(text.empty(), text);
}

NoiseSchedule schedule_of(const nlohmann::json& what) {
  return {what.at("schedule").get<std::string>(), what.at("steps").get<std::int64_t>(),
          what.value("respacing", std::string())};
}
Parametrization parametrization_of(const nlohmann::json& what) {
  return {.predict = option::named<Predict>(what.at("predict").get<std::string>()),
          .variance = option::named<Variance>(what.at("variance").get<std::string>())};
}

/// A case and the network that it names, on the device.
struct Network {
  explicit Network(const GoldenCase& golden) {
    const std::string file = golden.name().substr(0, golden.name().find(": "));
    const std::string wanted = file + ": unet/" + golden.what().at("unet").get<std::string>();
    const auto make = [&](const GoldenCase& candidate) {
      if (candidate.name() != wanted) return;
      unet = std::make_unique<models::Unet>(unet_options_of(candidate.what().at("unet")), 1);
      unet->to(*backend);
      load_unet(candidate, *unet);
    };
    for_each_golden_case("diffusion", make, "unet");
    BOOST_REQUIRE_MESSAGE(unet, golden.name() << " names no unet of the file");
    if (golden.has("y")) y = kernels::on_device(golden.tensor("y"), *backend);
  }
  /// Its output for images and a time for each, on the device.
  Var operator()(const Tensor& x, const std::vector<float>& t) {
    const Tensor times = Tensor::empty({std::ssize(t)});
    std::copy(t.begin(), t.end(), times.data<float>());
    return unet->predict(tape.constant(kernels::on_device(x, *backend)), kernels::on_device(times, *backend),
                         y);
  }

  std::unique_ptr<kernels::Backend> backend = make_backend_under_test();
  Tape tape{*backend};
  std::unique_ptr<models::Unet> unet;
  Tensor y;
};

BOOST_AUTO_TEST_CASE(schedules_have_the_numbers_of_guided_diffusion) {
  const auto check = [](const GoldenCase& golden) {
    const NoiseSchedule schedule = schedule_of(golden.what());
    std::vector<std::int64_t> steps = schedule.timesteps;
    expect(golden, "timesteps", Tensor::view(steps.data(), {std::ssize(steps)}, DType::int64), exact);
    const std::map<std::string, std::vector<double>> tables{
        {"betas", schedule.betas},
        {"alphas_cumprod", schedule.alphas_cumprod},
        {"posterior_variance", schedule.posterior_variance},
        {"posterior_log_variance_clipped", schedule.posterior_log_variance_clipped},
        {"posterior_mean_coef1", schedule.posterior_mean_coef1},
        {"posterior_mean_coef2", schedule.posterior_mean_coef2}};
    for (auto [name, values] : tables)
      expect(golden, name, Tensor::view(values.data(), {std::ssize(values)}, DType::float64),
             schedule_tolerance);
  };
  for_each_golden_case("diffusion", check, "schedule");
}

BOOST_AUTO_TEST_CASE(losses_and_their_gradients_are_those_of_guided_diffusion) {
  const auto check = [](const GoldenCase& golden) {
    Network network(golden);
    kernels::Backend& backend = *network.backend;
    Tape& tape = network.tape;
    const auto there = [&](const char* name) { return kernels::on_device(golden.tensor(name), backend); };
    const auto here = [&](const Tensor& tensor) { return kernels::on_cpu(tensor, &backend); };
    const DiffusionLoss loss(schedule_of(golden.what()), parametrization_of(golden.what()),
                             option::named<Objective>(golden.what().at("loss").get<std::string>()));
    const Tensor t = golden.tensor("t");
    const NoisedImages images{.x0 = there("x0"), .noise = there("noise"), .t = there("t")};

    tape.begin({.training = false, .record = false});
    const Tensor timesteps = here(loss.timesteps(tape, images.t));
    const std::vector<float> told(timesteps.data<float>(), timesteps.data<float>() + timesteps.numel());
    expect(golden, "output", here(network(loss.noised(tape, images), told).value()), layer_tolerance);

    tape.begin({.training = true});
    const Var output = tape.input(there("output"));
    const DiffusionLoss::Terms terms = loss.of(output, images);
    expect(golden, "loss", here(terms.loss.value()), term_tolerance);
    if (golden.has("mse")) expect(golden, "mse", here(terms.mse.value()), term_tolerance);
    if (golden.has("vb")) {
      // The file has what is added to the loss.
      const bool scaled = golden.what().at("loss") == "rescaled_mse";
      const auto factor = static_cast<float>(scaled ? golden.what().at("steps").get<double>() / 1000 : 1.0);
      expect(golden, "vb", here((factor * terms.vb).value()), term_tolerance);
    }
    backward(loss_of(sum(terms.loss), static_cast<double>(t.numel())), 1.0f / static_cast<float>(t.numel()));
    expect(golden, "grad_output", here(tape.gradient(output)), gradient_tolerance);
  };
  for_each_golden_case("diffusion", check, "loss");
}

BOOST_AUTO_TEST_CASE(chains_of_samplers_end_where_those_of_guided_diffusion_do) {
  const auto check = [](const GoldenCase& golden) {
    Network network(golden);
    const nlohmann::json& what = golden.what();
    const ReverseProcess process(schedule_of(what), parametrization_of(what),
                                 {.sampler = option::named<Sampler>(what.at("sampler").get<std::string>()),
                                  .eta = what.at("eta").get<double>(),
                                  .clip = what.at("clip").get<bool>()});
    const Tensor noise = golden.tensor("noise");
    const auto draw = [&](std::int64_t step, const Tensor& to) {
      const std::int64_t row = noise.size(0) - 1 - step;
      std::copy_n(noise.rows(row, row + 1).data<float>(), to.numel(), to.data<float>());
    };
    const auto output = [&](const Tensor& x, std::int64_t timestep) {
      network.tape.begin({.training = false, .record = false});
      return floats_of(
          network(x, std::vector<float>(static_cast<std::size_t>(x.size(0)), static_cast<float>(timestep))));
    };
    std::int64_t steps = 0;
    const Tensor sample =
        process.run(golden.tensor("start"), {.network = output, .draw = draw, .progress = [&] { ++steps; }});
    BOOST_TEST(steps == noise.size(0), golden.name());
    expect(golden, "sample", sample, chain_tolerance);
  };
  for_each_golden_case("diffusion", check, "sample");
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
