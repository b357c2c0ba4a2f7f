// Tasks against PyTorch: a model of a program, on two named inputs, learns numbers, or yes and no, and the
// models of series learn classes, numbers and forecasts, from the batches that PyTorch had, and are
// evaluated.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "lockstep/data/arrays.h"
#include "lockstep/nn/layers.h"
#include "lockstep/train/evaluate.h"
#include "support/world.h"
#include "train/golden_train.h"

namespace lockstep::test {
namespace {
BOOST_AUTO_TEST_SUITE(golden_regression, *golden() * ranks(1, 2, 3))

struct TwoInputs final : Model {
  struct Options {
    std::int64_t x = 1, z = 1, width = 1, outputs = 1;
    LOCKSTEP_KEYS(x, "numbers of field x", z, "numbers of field z", width, "features of the hidden layers",
                  outputs, "numbers of the output")
  };
  TwoInputs(const Options& options, std::uint64_t seed)
      : Model(seed),
        x(*this, "x", options.x, options.width),
        z(*this, "z", options.z, options.width),
        hidden(*this, "hidden", options.width, options.width),
        y(*this, "y", options.width, options.outputs) {}

  std::vector<std::string> reads() const override { return {"x", "z"}; }
  Var forward(Tape& tape, const Batch& batch) override {
    const Var both = x(tape.batch(batch["x"])) + z(tape.batch(batch["z"]));
    return y(hidden(relu(both), ops::Activation::relu));
  }

  nn::Linear x, z, hidden, y;
};

/// The samples of a case, whose order in training is that of the case.
class Recorded final : public data::Dataset {
 public:
  Recorded(const std::string& file, const GoldenCase& golden, const std::string& group)
      : arrays_(file, {.fields = paths(golden, "/" + group + "/data/")}),
        batches_(golden.tensor("batches")) {}

  std::int64_t size() const override { return arrays_.size(); }
  const std::vector<data::Field>& fields() const override { return arrays_.fields(); }
  std::string name() const override { return arrays_.name(); }
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    arrays_.read(samples, into);
  }
  std::unique_ptr<data::Order> order(std::uint64_t) const override {
    struct Given final : data::Order {
      void samples(std::int64_t first, std::span<std::int64_t> out) const override {
        for (std::int64_t& sample : out)  // the loader reads ahead of the last step
          sample = all.data<std::int64_t>()[first++ % all.numel()];
      }
      Tensor all;
    };
    auto given = std::make_unique<Given>();
    given->all = batches_;
    return given;
  }

 private:
  static std::vector<std::string> paths(const GoldenCase& golden, const std::string& group) {
    std::vector<std::string> words;
    for (const std::string& field : golden.names("data")) words.push_back(field + ":" + group + field);
    return words;
  }

  data::Arrays arrays_;
  Tensor batches_;
};

Batch batch_of_all(const data::Dataset& data) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(data.size()));
  std::iota(samples.begin(), samples.end(), 0);
  std::vector<Tensor> tensors;
  for (const data::Field& field : data.fields())
    tensors.push_back(Tensor::empty(data::batch_shape(data.size(), field.shape), field.dtype));
  data.read(samples, tensors);
  return data::batch_of(0, data.fields(), tensors);
}

void expect_metrics(const GoldenCase& golden, const train::EvaluationResult& found) {
  const nlohmann::json& wanted = golden.what().at("metrics");
  const auto is_new = [&](const auto& metric) { return metric.first == "mae" && !wanted.contains("mae"); };
  BOOST_TEST(found.metrics.size() - static_cast<std::size_t>(std::ranges::count_if(found.metrics, is_new)) ==
                 wanted.size(),
             golden.name() << ": number of metrics");
  const auto tensor = [](double value) {
    const Tensor one = Tensor::empty({}, DType::float64);
    *one.data<double>() = value;
    return one;
  };
  Tolerance tolerance = trajectory_tolerance;
  tolerance.smallest_largest = 1;  // r2 is one minus a quotient
  for (const auto& [name, value] : wanted.items()) {
    const std::string text =
        mismatch(golden, "metric " + name, tensor(found[name]), tensor(value.get<double>()), tolerance);
    BOOST_CHECK_MESSAGE(text.empty(), text);
  }
}

/// A case as a run has it, with the weights that it begins with.
struct Beginning {
  explicit Beginning(const std::filesystem::path& path, const GoldenCase& golden)
      : config(config_of(golden.what(), world().size(), registries)),
        data(path.string(), golden, group(golden)),
        model(train::build_model(config)),
        task(train::make_task(config)) {
    train::check_data(*model, *task, data);
    model->to(*backend);
    checkpoint::load_weights(path.string(), *model, world(), group(golden) + "/init");
  }

  static Registries with_two_inputs() {
    Registries all;
    add_built_in(all);
    all.models.add<TwoInputs>("two_inputs");
    return all;
  }
  static std::string group(const GoldenCase& golden) {
    return golden.name().substr(golden.name().find(": ") + 2);
  }

  Registries registries = with_two_inputs();
  train::Config config;
  std::unique_ptr<kernels::Backend> backend = kernels::make_cpu_backend();
  Recorded data;
  std::unique_ptr<Model> model;
  std::unique_ptr<Task> task;
};

void check_gradients(const std::filesystem::path& path, const GoldenCase& golden) {
  const Beginning run(path, golden);
  const Batch all = batch_of_all(run.data);
  LocalGradients gradients(*run.model, *run.backend);
  Tape tape(*run.backend);
  tape.begin({.sink = &gradients});
  const Loss loss = (*run.task)(tape, *run.model, all);
  const double mean = loss.read().sum / loss.read().count;
  backward(loss, static_cast<float>(1 / loss.read().count));
  tape.finish_backward();
  for (const Param* const param : gradients.params())
    expect(golden, "grad/" + param->name, param->gradient, layer_tolerance);
  tape.begin({.record = false, .compute = DType::bfloat16});
  const ops::CountedSum rounded = (*run.task)(tape, *run.model, all).read();
  BOOST_TEST(std::abs(rounded.sum / rounded.count - mean) < 2e-2 * mean, golden.name());
}

void train_case(const std::filesystem::path& path, const GoldenCase& golden) {
  const Beginning run(path, golden);
  const train::Config& config = run.config;
  Model& model = *run.model;
  ddp::DataParallel replicas(model, world(), *run.backend, {.shards = config.ddp.shards});
  const auto optimizer = config.optimizer.make(replicas);
  data::Loader loader(run.data, {.global_batch = config.train.global_batch, .shards = config.ddp.shards},
                      world());

  const Tensor losses = Tensor::empty({config.train.steps}, DType::float64);
  for (std::int64_t step = 0; step < config.train.steps; ++step) {
    const ddp::StepResult result = replicas.step(
        loader.at(step), [&](Tape& tape, const Batch& shard) { return (*run.task)(tape, model, shard); });
    losses.data<double>()[step] = result.mean_loss();
    optimizer->step({.lr = {}, .clip = config.optimizer.clip});
  }
  expect(golden, "loss", losses, loss_tolerance);
  std::vector<checkpoint::NamedTensor> final;
  const ModelState state = model.state();
  for (const Param* const param : state.params) final.push_back({param->name, param->value});
  for (const Buffer* const buffer : state.buffers) final.push_back({buffer->name, buffer->value});
  expect_group(golden, "final", final);
  for (const optim::Slot& slot : optimizer->slots()) {
    if (!golden.has(slot.name)) continue;  // no case has the count of updates, networks of volumes no state
    std::vector<checkpoint::NamedTensor> entries;
    for (const optim::Slot::Entry& entry : slot.entries) entries.push_back({entry.name, entry.tensor});
    expect_group(golden, slot.name, entries);
  }

  Tape& tape = replicas.tape();
  tape.begin({.training = false, .record = false});
  const Batch all = batch_of_all(run.data);
  Tensor output = floats_of(model.forward(tape, all));
  if (const std::string lengths = model.output_lengths(); all.has(lengths))
    output = keep_steps(tape, output, all[lengths]);  // 0 in the case, too
  expect(golden, "output", output, trajectory_tolerance);
  expect_metrics(
      golden, train::evaluate({.model = model, .task = *run.task, .tape = tape, .world = world()}, run.data));
}

/// A folder that LOCKSTEP_GOLDEN names may have none.
std::vector<std::filesystem::path> files(const char* name) {
  try {
    return golden_files(name, ".h5");
  } catch (const DataError& error) {
    if (!std::getenv("LOCKSTEP_GOLDEN")) throw;
    BOOST_TEST_MESSAGE(error.what());
    return {};
  }
}

template <class Check>
void for_each_case(const char* name, const Check& check) {
  for (const auto& file : files(name))
    for_each_golden_case(file.filename().string(), [&](const GoldenCase& golden) { check(file, golden); });
}

BOOST_AUTO_TEST_CASE(losses_weights_and_metrics_of_tasks_are_those_of_pytorch) {
  for_each_case("regression", train_case);
}
BOOST_AUTO_TEST_CASE(models_of_series_learn_as_those_of_pytorch) { for_each_case("series", train_case); }
BOOST_AUTO_TEST_CASE(models_of_series_have_the_gradients_of_pytorch_and_losses_near_in_bf16) {
  for_each_case("series", check_gradients);
}

BOOST_AUTO_TEST_SUITE_END()
}  // namespace
}  // namespace lockstep::test
