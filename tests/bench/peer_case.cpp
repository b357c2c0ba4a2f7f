// Three steps of a standard workload, for peers to repeat: peer_case WORKLOAD SAMPLES FILE.h5
//
// The file has /workload, /param/NAME (the initial values), /x, /y, /noise and /t of each step (of a
// diffusion), and of each step /loss and /squares, the sum of all parameters' squares after it. One rank and
// one shard, float32, without dropout. Parameters that begin at zero get other values, or nothing behind them
// would show.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/hdf5/file.h"
#include "lockstep/tasks/diffusion.h"
#include "lockstep/train/session.h"
#include "train/components.h"
#include "train/run/benchmark.h"

using namespace lockstep;

namespace {

constexpr std::int64_t steps = 3;
constexpr std::uint64_t seed = 1;

struct OneBatch {
  std::int64_t step = 0;
  std::vector<Batch> shards;
  auto begin() const { return shards.begin(); }
  auto end() const { return shards.end(); }
};

template <class T>
void put(hdf5::Group& to, std::string_view name, const std::vector<std::int64_t>& shape, const T* elements) {
  hdf5::Dataset made = to.create_dataset(name, dtype_of<T>, std::span(shape));
  made.write(std::span<const T>(elements, static_cast<std::size_t>(made.numel())));
}

void put(hdf5::Group& to, std::string_view name, const Tensor& tensor) {
  const std::vector<std::int64_t> shape(tensor.shape().begin(), tensor.shape().end());
  if (tensor.dtype() == DType::int64)
    put(to, name, shape, tensor.data<std::int64_t>());
  else
    put(to, name, shape, tensor.data<float>());
}

void replace_zeros(const Param& param) {
  float* const values = param.value.data<float>();
  if (std::any_of(values, values + param.value.numel(), [](float value) { return value != 0; })) return;
  const Random random({.purpose = purpose_of(param.name)});
  for (std::int64_t i = 0; i < param.value.numel(); ++i)
    values[i] = 0.02f * random.normal(static_cast<std::uint64_t>(i));
}

double squares_of(const ModelState& model) {
  double sum = 0;
  for (const Param* const param : model.params) {
    const float* const values = param->value.data<float>();
    for (std::int64_t i = 0; i < param->value.numel(); ++i) sum += double{values[i]} * values[i];
  }
  return sum;
}

/// Into the file: the noise and times that tasks::Diffusion draws in each step.
void put_draws(hdf5::Group& to, const Shape& x, std::int64_t times) {
  std::vector<float> noise;
  std::vector<std::int64_t> t;
  for (std::uint64_t step = 0; step < steps; ++step) {
    const Random normals({.seed = seed, .purpose = purpose_of("diffusion:noise"), .step = step});
    const Random uniform({.seed = seed, .purpose = purpose_of("diffusion:time"), .step = step});
    for (std::int64_t i = 0; i < x.numel(); ++i)
      noise.push_back(normals.normal(static_cast<std::uint64_t>(i)));
    for (std::int64_t n = 0; n < x[0]; ++n)
      t.push_back(uniform.below(static_cast<std::uint64_t>(n), static_cast<std::uint32_t>(times)));
  }
  std::vector<std::int64_t> shape{steps};
  shape.insert(shape.end(), x.begin(), x.end());
  put(to, "noise", shape, noise.data());
  put(to, "t", {steps, x[0]}, t.data());
}

ExitCode write_case(Session& session, const std::string& name, std::int64_t samples,
                    const std::string& path) {
  const train::StandardWorkload& workload = train::workload_named(name);
  std::vector<std::string> overrides;
  if (workload.config.find("dropout") != std::string::npos) overrides.emplace_back("model.dropout=0");
  const train::Config config = train::parse_config(
      fmt::format("{}[train]\nsteps = 1\nglobal_batch = {}\n", workload.config, samples), name, overrides);
  const std::unique_ptr<models::Model> model = train::build_model(config);
  const ModelState state = model->state();
  for (const Param* const param : state.params) replace_zeros(*param);
  const std::unique_ptr<Task> task = train::make_task(config);
  const Batch shard = train::made_up_shard(*model, workload.image_pixels, samples, 0);

  hdf5::File file = hdf5::File::create(path, {.existing = hdf5::CreateOptions::Existing::replace});
  file.create_text("workload", name);
  hdf5::Group params = file.create_group("param");
  for (const Param* const param : state.params) put(params, param->name, param->value);
  put(file, "x", shard["x"]);
  if (const auto* const diffusion = config.task.options_of<tasks::Diffusion>()) {
    put_draws(file, shard["x"].shape(), diffusion->steps);
  } else {
    put(file, "y", shard["y"]);
  }

  ddp::DataParallel replicas(*model, session.transport(), session.backend(), {.seed = seed});
  const auto optimizer = config.optimizer.make(replicas);
  std::vector<double> losses, squares;
  for (OneBatch batch{.shards = {shard}}; batch.step < steps; ++batch.step) {
    const ddp::StepResult result = replicas.step(batch, [&](Tape& tape, const Batch& samples_of_shard) {
      return (*task)(tape, *model, samples_of_shard);
    });
    optimizer->step();
    losses.push_back(result.mean_loss());
    squares.push_back(squares_of(state));
  }
  put(file, "loss", {steps}, losses.data());
  put(file, "squares", {steps}, squares.data());
  file.close();
  return ExitCode::done;
}

}  // namespace

int main(int argc, char** argv) {
  return run(argc, argv, [&](Session& session) {
    if (argc != 4) throw UsageError("usage: peer_case WORKLOAD SAMPLES FILE.h5");
    return write_case(session, argv[1], std::stoll(argv[2]), argv[3]);
  });
}
