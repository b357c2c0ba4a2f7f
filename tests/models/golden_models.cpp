// Models against PyTorch, on the CPU or on a GPU: names and shapes of the state, the first loss in training,
// logits in evaluation.
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "base/text.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/gradient_sink.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/models/registry.h"
#include "lockstep/nn/norm.h"
#include "lockstep/ops/loss.h"
#include "support/backend_under_test.h"
#include "support/golden.h"
#include "support/ranks.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(golden_models, *golden())

models::ModelConfig config_of(const nlohmann::json& model) {
  models::ModelConfig config = models::built_in_models().configure(model.at("name"));
  for (const auto& [key, value] : model.items()) {
    if (key == "name") continue;
    const auto option = std::ranges::find(config.type->options, key, &Option<models::ModelConfig>::name);
    if (option == config.type->options.end()) throw DataError("unknown model key {}", key);
    // "[4, 3]": a list has blanks between its numbers.
    std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    std::erase_if(text, [](char letter) { return letter == '[' || letter == ']'; });
    std::ranges::replace(text, ',', ' ');
    option->set(config, text);
  }
  return config;
}

/// Loads every tensor of a group, wrapper prefixes stripped. Each name must be a parameter or buffer of the
/// model, and each of those must be there.
void load(const GoldenCase& golden, const std::string& group, const ModelState& state) {
  std::size_t loaded = 0;
  for (const std::string& stored : golden.names(group)) {
    const std::string_view name = strip_wrapper_prefix(stored);
    const Tensor tensor = golden.tensor(group + "/" + stored);
    for (Param* const param : state.params) {
      if (param->name == name) kernels::transfer(tensor, param->value, state.backend), ++loaded;
    }
    for (Buffer* const buffer : state.buffers) {
      if (buffer->name == name) kernels::transfer(tensor, buffer->value, state.backend), ++loaded;
    }
  }
  BOOST_TEST(loaded == golden.names(group).size(), golden.name());
  BOOST_TEST(loaded == state.params.size() + state.buffers.size(), golden.name());
}

/// What `tensor` holds for step 0.
Tensor first(const Tensor& tensor) {
  const Shape& shape = tensor.shape();
  return tensor.rows(0, 1).reshape(Shape(shape.extents().subspan(1)));
}

/// The mean loss of a recorded pass, as a tensor [1].
Tensor mean_of(const Loss& loss) {
  const Tensor mean = Tensor::empty({1}, DType::float64);
  const ops::CountedSum total = loss.read();
  *mean.data<double>() = total.sum / total.count;
  return mean;
}

void check_model(const GoldenCase& golden, DType compute, const Tolerance& loss_within,
                 const Tolerance& logits_within) {
  const auto model = models::make_model(config_of(golden.what().at("model")), 1);
  const auto backend = make_backend_under_test();
  model->to(*backend);
  LocalGradients gradients(*model, *backend);
  Tape tape(*backend);
  const Tensor x = kernels::on_device(first(golden.tensor("x")), *backend),
               y = kernels::on_device(first(golden.tensor("y")), *backend);

  load(golden, "init", *model);
  tape.begin({.sink = &gradients, .compute = compute});
  const Loss loss = cross_entropy(model->forward(tape, x), y);
  std::string text =
      mismatch(golden, "loss[0]", mean_of(loss), golden.tensor("loss").rows(0, 1), loss_within);
  BOOST_CHECK_MESSAGE(text.empty(), text);

  load(golden, "final", *model);
  tape.begin({.training = false, .record = false, .compute = compute});
  const Tensor logits = in_float32(*backend, model->forward(tape, x).value());
  text = mismatch(golden, "eval_logits", kernels::on_cpu(logits, backend.get()), logits_within);
  BOOST_CHECK_MESSAGE(text.empty(), text);
}

BOOST_AUTO_TEST_CASE(every_model_computes_what_pytorch_does) {
  for_each_golden_case("train", [](const GoldenCase& golden) {
    check_model(golden, DType::float32, loss_tolerance, trajectory_tolerance);
  });
}

/// Gradients in float32 only: in bf16 a ReLU near 0 of so small a model may go the other way.
void check_vision_model(const GoldenCase& golden, DType compute, const Tolerance& loss_within,
                        const Tolerance& logits_within) {
  const auto model = models::make_model(config_of(golden.what().at("model")), 1);
  if (golden.what().at("frozen_statistics")) nn::freeze_statistics(*model);
  const auto backend = make_backend_under_test();
  model->to(*backend);
  load(golden, "init", *model);
  LocalGradients gradients(*model, *backend);
  Tape tape(*backend);
  const Tensor x = kernels::on_device(golden.tensor("x"), *backend),
               y = kernels::on_device(golden.tensor("y"), *backend);
  const auto check = [&](const std::string& name, const Tensor& found, const Tolerance& tolerance) {
    const std::string text = mismatch(golden, name, kernels::on_cpu(found, backend.get()), tolerance);
    BOOST_CHECK_MESSAGE(text.empty(), text);
  };

  tape.begin({.sink = &gradients, .compute = compute});
  const Loss loss = cross_entropy(model->forward(tape, x), y);
  check("loss", mean_of(loss), loss_within);
  backward(loss, 1 / static_cast<float>(x.size(0)));
  tape.finish_backward();
  if (compute == DType::float32)
    for (const Param* const param : gradients.params())
      check("grad/" + param->name, param->gradient, layer_tolerance);

  tape.begin({.training = false, .record = false, .compute = compute});
  check("eval_logits", in_float32(*backend, model->forward(tape, x).value()), logits_within);
}

BOOST_AUTO_TEST_CASE(models_have_the_gradients_and_logits_of_torchvision) {
  for_each_golden_case("vision", [](const GoldenCase& golden) {
    check_vision_model(golden, DType::float32, loss_tolerance, trajectory_tolerance);
  });
}

BOOST_AUTO_TEST_CASE(in_bf16_models_stay_near_torchvision) {
  for_each_golden_case("vision", [](const GoldenCase& golden) {
    check_vision_model(golden, DType::bfloat16, bf16_loss_tolerance, bf16_tolerance);
  });
}

/// Samples of a field, in the order of a case's first batch.
Tensor first_batch(const GoldenCase& golden, const std::string& field) {
  const Tensor all = golden.tensor("data/" + field), order = first(golden.tensor("batches"));
  const Tensor batch = Tensor::empty(all.shape().with(0, order.numel()));
  for (std::int64_t i = 0; i < order.numel(); ++i) {
    const std::int64_t sample = order.data<std::int64_t>()[i];
    std::copy_n(all.rows(sample, sample + 1).data<float>(), all.numel() / all.size(0),
                batch.rows(i, i + 1).data<float>());
  }
  return batch;
}

/// A network of images or volumes that learns numbers; gradients in float32 only, as above.
void check_volumes(const GoldenCase& golden, DType compute, bool recompute, const Tolerance& within) {
  nlohmann::json options = golden.what().at("model");
  if (recompute) options["recompute"] = true;
  const auto model = models::make_model(config_of(options), 1);
  const auto backend = make_backend_under_test();
  model->to(*backend);
  LocalGradients gradients(*model, *backend);
  Tape tape(*backend);
  const auto there = [&](const Tensor& tensor) { return kernels::on_device(tensor, *backend); };
  const auto check = [&](const std::string& name, const Tensor& found, const Tolerance& tolerance) {
    const std::string text = mismatch(golden, name, kernels::on_cpu(found, backend.get()), tolerance);
    BOOST_CHECK_MESSAGE(text.empty(), text);
  };
  if (compute == DType::float32) {
    load(golden, "init", *model);
    tape.begin({.sink = &gradients});
    const Tensor y = first_batch(golden, "y");
    const Var output = model->forward(tape, there(first_batch(golden, "x")));
    const Tensor target = there(y.reshape(output.shape()));
    const bool is_l1 = golden.what().at("task").at("loss") == "l1";
    backward(is_l1 ? l1(output, target) : mse(output, target), 1 / static_cast<float>(y.numel()));
    tape.finish_backward();
    for (const Param* const param : gradients.params())
      check("grad/" + param->name, param->gradient, layer_tolerance);
  }
  load(golden, "final", *model);
  tape.begin({.training = false, .record = false, .compute = compute});
  check("output", in_float32(*backend, model->forward(tape, there(golden.tensor("data/x"))).value()), within);
}

BOOST_AUTO_TEST_CASE(networks_of_volumes_have_the_gradients_and_outputs_of_pytorch) {
  for_each_golden_case("regression_volumes", [](const GoldenCase& golden) {
    check_volumes(golden, DType::float32, false, trajectory_tolerance);
    check_volumes(golden, DType::float32, true, trajectory_tolerance);
  });
}

BOOST_AUTO_TEST_CASE(in_bf16_networks_of_volumes_stay_near_pytorch) {
  for_each_golden_case("regression_volumes", [](const GoldenCase& golden) {
    check_volumes(golden, DType::bfloat16, false, {.of_largest = 4e-2});
  });
}

BOOST_AUTO_TEST_CASE(in_bf16_models_stay_near) {
  for_each_golden_case("train", [](const GoldenCase& golden) {
    check_model(golden, DType::bfloat16, bf16_loss_tolerance, bf16_tolerance);
  });
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
