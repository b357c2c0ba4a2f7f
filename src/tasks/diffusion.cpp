#include "lockstep/tasks/diffusion.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/text.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/base/error.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/ops/gather.h"
#include "lockstep/ops/random.h"

namespace lockstep::tasks {
namespace {

constexpr std::uint64_t time_purpose = purpose_of("diffusion:time"),
                        noise_purpose = purpose_of("diffusion:noise"),
                        class_purpose = purpose_of("diffusion:class"),
                        start_purpose = purpose_of("diffusion:start"),
                        sampler_purpose = purpose_of("diffusion:sampler");
constexpr int quarters = 4;

RandomKey with_purpose(RandomKey key, std::uint64_t purpose) {
  key.purpose = purpose;
  return key;
}

/// A tensor on the device; fill(memory) sets its elements on the CPU.
template <class Element, class Fill>
Tensor filled(kernels::Backend& backend, const Shape& shape, DType dtype, const Fill& fill) {
  const bool on_cpu = backend.device() == Device::cpu();
  const Tensor tensor = on_cpu ? backend.empty(shape, dtype) : Tensor::empty(shape, dtype);
  fill(tensor.data<Element>());
  return kernels::on_device(tensor, backend);
}

NoiseSchedule schedule_of(const Diffusion::Options& options) {
  try {
    return NoiseSchedule(options.schedule, options.steps);
  } catch (const UsageError& error) {
    throw UsageError("diffusion.steps = {}: {}", options.steps, error.what());
  }
}

}  // namespace

std::vector<Option<Diffusion::Options>> Diffusion::Options::options() {
  using namespace option;
  using O = Options;
  return {
      choice("schedule", &O::schedule, {"linear", "cosine"}, "how the noise grows over the steps",
             {.peers = {"noise_schedule", "beta_schedule"}}),
      number("steps", &O::steps, Range::from(2, 1000000), "number of noise steps",
             {.unit = "steps", .peers = {"diffusion_steps", "num_train_timesteps", "timesteps"}}),
      choice("predict", &O::predict, "what the model estimates: the noise, the image, or v of both",
             {.peers = {"prediction_type", "predict_xstart", "objective"}}),
      choice("variance", &O::variance,
             "variance of a denoising step: the posterior's, beta, or learned between them, in a second half "
             "of the model's output channels",
             {.peers = {"learn_sigma", "sigma_small", "variance_type"}}),
      choice("loss", &O::loss,
             "squared error (and the bound, for a learned variance); the same with the bound times steps / "
             "1000; the variational bound",
             {.peers = {"use_kl", "rescale_learned_sigmas"}}),
      number("min_snr", &O::min_snr, Range::from(0, 1e9),
             "gamma of the min-SNR weights of squared errors; 0: all weigh the same",
             {.peers = {"min_snr_gamma", "snr_gamma", "min_snr_loss_weight"}}),
      choice("time", &O::time, {"uniform", "loss_second_moment"},
             "how often a noise step is drawn: all alike, or more often where the loss is greater",
             {.peers = {"schedule_sampler", "timestep_sampling"}}),
      number("class_dropout", &O::class_dropout, Range::below(0, 1),
             "fraction of the samples whose class is withheld, for classifier-free guidance",
             {.peers = {"cond_drop_prob", "class_dropout_prob", "label_dropout", "p_uncond"}}),
  };
}

Diffusion::Diffusion(const Options& options)
    : options_(options),
      of_{.predict = options.predict, .variance = options.variance},
      loss_(schedule_of(options), of_, options.loss, options.min_snr) {
  if (options.min_snr > 0 && options.loss == Objective::kl)
    throw UsageError("diffusion.min_snr = {:g}: weighs squared errors, but diffusion.loss is kl; remove it",
                     options.min_snr);
  if (options.time == "loss_second_moment") times_.emplace(options.steps);
}

std::vector<Metric> Diffusion::metrics() const {
  std::vector<Metric> metrics;
  for (int quarter = 0; quarter < quarters; ++quarter)
    metrics.push_back({.name = fmt::format("loss_q{}", quarter), .printed = false});
  return metrics;
}

void Diffusion::check(const Model& model, const data::Dataset& data) {
  const data::Field& x = data::field_named(data, "x");
  if (x.dtype != DType::float32 || x.shape.rank() == 0)
    throw DataError("{}: field x is {} {}, but task.name = diffusion learns images of floats in [-1, 1]",
                    data.name(), to_string(x.dtype), to_string(x.shape));
  const Shape image = model.sample_shape();
  const bool of_any_size = !(image == model.sample_shape(2));
  if (image.rank() > 0 && !of_any_size && !(image == x.shape))
    throw DataError(
        "{}: images are {}, but those of the model are {}: [channels, height, width]; set model.image_size "
        "to the side of the data",
        data.name(), to_string(x.shape), to_string(image));
  const std::int64_t channels = (of_.variance == Variance::learned_range ? 2 : 1) * x.shape[0];
  if (model.out_channels() > 0 && model.out_channels() != channels)
    throw UsageError(
        "diffusion.variance = {} of images with {} needs {} output channels (model.out_channels), not {}",
        option::word(options_.variance), pluralized(x.shape[0], "channel"), channels, model.out_channels());
  const std::int64_t classes = model.input_classes();
  if (classes == 0 && options_.class_dropout > 0)
    throw UsageError(
        "diffusion.class_dropout = {:g}: the model takes no classes; set model.num_classes, or remove it",
        options_.class_dropout);
  if (classes == 0) return;
  const data::Field& y = data::field_named(data, "y");
  if (y.dtype != DType::int64 || y.shape.rank() > 0)
    throw DataError("{}: field y is {} {}, but the model takes a class for each image: int64 []", data.name(),
                    to_string(y.dtype), to_string(y.shape));
  if (y.classes > classes)
    throw DataError("{}: field y has values up to {}, but the model has {} classes (0 to {})", data.name(),
                    y.classes - 1, classes, classes - 1);
}

/// The probabilities go to the device whenever they change, so that a graph's draws are by the latest.
void Diffusion::send_times() {
  if (sent_ == times_->probabilities()) return;
  sent_ = times_->probabilities();
  const std::int64_t steps = std::ssize(sent_);
  const Tensor weights = Tensor::empty({steps, 1});
  for (std::int64_t t = 0; t < steps; ++t) weights.data<float>()[t] = static_cast<float>(times_->weight(t));
  backend_->copy(weights, weights_);
  backend_->copy(times_->sums(), sums_);
}

void Diffusion::begin_step(std::uint64_t step, kernels::Backend& backend) {
  if (!is_taken_ && step == step_) return;
  step_ = step;
  is_taken_ = false;
  for (PassLosses& pass : passes_) pass.of_step = false;
  if (backend_ != &backend) {
    backend_ = &backend;
    passes_.clear();
    sent_.clear();
    sums_ = backend.empty({options_.steps}, DType::float64);
    weights_ = backend.empty({options_.steps, 1});
  }
  times_->update();
  send_times();
}

/// Shards may run again in the same step, at once or alone: the last pass over them counts.
Diffusion::PassLosses& Diffusion::pass_of(const Pass& pass, std::int64_t samples) {
  const auto shards = static_cast<std::uint32_t>(pass.shards);
  for (PassLosses& other : passes_)
    if (other.shard < pass.shard + shards && pass.shard < other.shard + other.shards) other.of_step = false;
  auto found = std::ranges::find_if(passes_, [&](const PassLosses& known) {
    return known.shard == pass.shard && known.shards == shards && known.t.numel() == samples;
  });
  if (found == passes_.end())  // in the order of shards, which is that of take_numbers()
    found = passes_.insert(std::ranges::upper_bound(passes_, pass.shard, {}, &PassLosses::shard),
                           {.shard = pass.shard,
                            .shards = shards,
                            .t = backend_->empty({samples}, DType::int64),
                            .losses = backend_->empty({samples})});
  found->of_step = true;
  return *found;
}

Loss Diffusion::loss(Tape& tape, Model& model, const Batch& batch) {
  kernels::Backend& backend = tape.backend();
  const Pass& pass = tape.pass();
  const std::int64_t samples = batch.samples();
  const RandomKey key = pass.training ? RandomKey{.seed = pass.seed, .step = pass.step, .shard = pass.shard}
                                      : RandomKey{.shard = static_cast<std::uint32_t>(batch.index)};
  const auto drawn = [&](std::uint64_t purpose, const Tensor& into, ops::Distribution distribution,
                         double parameter, const Tensor& sums) {
    tape.run_by_shard(ops::Draw{distribution, with_purpose(key, purpose), parameter, sums, into});
    return into;
  };
  using enum ops::Distribution;
  const bool by_loss = times_ && pass.training;
  if (by_loss) begin_step(pass.step, backend);
  PassLosses* const kept = by_loss ? &pass_of(pass, samples) : nullptr;
  const Tensor x0 = backend.in_type(batch["x"], DType::float32);
  const NoisedImages images{.x0 = x0,
                            .noise = drawn(noise_purpose, backend.empty(x0.shape()), normal, 0, {}),
                            .t = kept ? drawn(time_purpose, kept->t, weighted, 0, sums_)
                                      : drawn(time_purpose, backend.empty({samples}, DType::int64), integer,
                                              static_cast<double>(options_.steps), {})};
  Batch input(batch.index, {{"x", loss_.noised(tape, images)}, {"t", loss_.timesteps(tape, images.t)}});
  if (model.input_classes() > 0) {
    input.add("y", batch["y"]);
    if (options_.class_dropout > 0 && pass.training)
      input.add("has_class", drawn(class_purpose, backend.empty({samples}, DType::uint8), coin,
                                   options_.class_dropout, {}));
  }
  const Var losses = this->losses(model(tape, input), images);
  if (!pass.training) {  // for evaluate()
    t_ = images.t;
    losses_ = losses.value();
  }
  if (!kept) return loss_of_samples(losses);
  backend.copy(losses.value(), kept->losses);
  const Tensor weights = backend.empty({samples, 1});
  backend.run(ops::Embedding{kept->t, weights_, weights});
  return loss_of_samples(losses * tape.constant(weights.reshape({samples})));
}

void Diffusion::evaluate(Evaluation& to, const Batch&, const Var& output) {
  Tape& tape = output.tape();
  const Tensor losses = floats_of(losses_, tape), times = kernels::on_cpu(t_, &tape.backend());
  static constexpr std::array<const char*, quarters> names{"loss_q0", "loss_q1", "loss_q2", "loss_q3"};
  for (std::int64_t n = 0; n < times.numel(); ++n)
    to.add(names[static_cast<std::size_t>(quarters * times.data<std::int64_t>()[n] / options_.steps)],
           {losses.data<float>()[n], 1.0});
}

void Diffusion::take_numbers(std::vector<double>& to) {
  std::vector<kernels::Transfer> reads;
  for (const PassLosses& pass : passes_)
    if (pass.of_step)
      for (const Tensor& tensor : {pass.t, pass.losses})
        reads.push_back({tensor, Tensor::empty(tensor.shape(), tensor.dtype())});
  if (!reads.empty()) backend_->read(reads);
  for (std::size_t i = 0; i + 1 < reads.size(); i += 2) {
    const Tensor &t = reads[i].to, &losses = reads[i + 1].to;
    for (std::int64_t n = 0; n < t.numel(); ++n) {
      to.push_back(static_cast<double>(t.data<std::int64_t>()[n]));
      to.push_back(losses.data<float>()[n]);
    }
  }
  is_taken_ = true;
}

void Diffusion::after_step(std::span<const double> numbers) {
  for (std::size_t i = 0; i + 1 < numbers.size(); i += 2)
    times_->add(static_cast<std::int64_t>(numbers[i]), numbers[i + 1]);
  if (!is_taken_ || !backend_) return;  // begin_step() sends them
  times_->update();
  send_times();
}

std::vector<std::pair<std::string, Tensor>> Diffusion::state() {
  return times_ ? times_->state() : std::vector<std::pair<std::string, Tensor>>{};
}

namespace {

/// A text in the options: a task of a program may have other samplers.
Sampler sampler_of(const SampleOptions& options) {
  try {
    return option::named<Sampler>(options.sampler);
  } catch (const UsageError& error) {
    throw UsageError("sampler {}", error.what());
  }
}

}  // namespace

void Diffusion::check_sampling(const Model& model, const SampleOptions& options) const {
  option::check(options, "");
  const Sampler sampler = sampler_of(options);
  if (options.eta > 0 && sampler != Sampler::ddim)
    throw UsageError("eta {:g}: only the sampler ddim has it, and the sampler is {}; remove it", options.eta,
                     options.sampler);
  (void)NoiseSchedule(options_.schedule, options_.steps, options.steps);
  if (options.guidance == 1) return;
  if (model.input_classes() == 0)
    throw UsageError("guidance {:g}: the model takes no classes; leave it out", options.guidance);
  if (options_.class_dropout == 0)
    throw UsageError(
        "guidance {:g}: the model has not learned images without a class (diffusion.class_dropout = 0); "
        "leave it out",
        options.guidance);
}

std::int64_t Diffusion::sampling_steps(const SampleOptions& options) const {
  return std::ssize(kept_steps(options_.steps, options.steps));
}

namespace {

/// The classes that a network reads, on the device: those of the samples, then, for guidance, no classes.
struct ClassInputs {
  Tensor y, has_class;
};

ClassInputs class_inputs_of(kernels::Backend& backend, std::span<const std::int64_t> classes, bool guided) {
  const Shape shape{(guided ? 2 : 1) * std::ssize(classes)};
  ClassInputs inputs;
  inputs.y = filled<std::int64_t>(backend, shape, DType::int64, [&](std::int64_t* y) {
    for (std::int64_t n = 0; n < shape[0]; ++n)
      y[n] = std::max<std::int64_t>(classes[static_cast<std::size_t>(n % std::ssize(classes))], 0);
  });
  inputs.has_class = filled<std::uint8_t>(backend, shape, DType::uint8, [&](std::uint8_t* has) {
    for (std::int64_t n = 0; n < shape[0]; ++n)
      has[n] = n < std::ssize(classes) && classes[static_cast<std::size_t>(n)] >= 0;
  });
  return inputs;
}

/// Twice the samples, in two halves.
Tensor twice(const Tensor& x) {
  std::vector<std::int64_t> extents(x.shape().begin(), x.shape().end());
  extents[0] *= 2;
  const Tensor both = Tensor::empty(Shape(std::span<const std::int64_t>(extents)));
  std::copy_n(x.data<float>(), x.numel(), both.data<float>());
  std::copy_n(x.data<float>(), x.numel(), both.data<float>() + x.numel());
  return both;
}

/// Combines outputs with a class and without: none + guidance (class - none) in the estimate, the first
/// `estimate` elements of each sample; the variance is that with the class.
Tensor guided_output(const Tensor& both, double guidance, std::int64_t estimate) {
  const std::int64_t samples = both.size(0) / 2, width = both.numel() / (2 * samples);
  const Tensor with_class = both.rows(0, samples);
  const float* const none = both.rows(samples, 2 * samples).data<float>();
  float* const result = with_class.data<float>();
  const auto factor = static_cast<float>(guidance);
  for (std::int64_t n = 0; n < samples; ++n) {
    for (std::int64_t i = n * width; i < n * width + estimate; ++i)
      result[i] = none[i] + factor * (result[i] - none[i]);
  }
  return with_class;
}

}  // namespace

Tensor Diffusion::sample(Model& model, kernels::Backend& backend, const SampleOptions& options,
                         std::int64_t first, std::span<const std::int64_t> classes,
                         const std::function<void()>& progress) {
  check_sampling(model, options);
  const std::int64_t model_classes = model.input_classes(), samples = std::ssize(classes);
  for (const std::int64_t label : classes) {
    if (label >= model_classes || label < -1)
      throw UsageError("class {}: {}", label,
                       model_classes == 0 ? std::string("the model takes no classes; leave it out")
                                          : fmt::format("is not one of the model's {} classes, 0 to {}",
                                                        model_classes, model_classes - 1));
    if (label < 0 && model_classes > 0 && options_.class_dropout == 0)
      throw UsageError(
          "the model has not learned images without a class (diffusion.class_dropout = 0); select a class");
  }
  const Shape image = model.sample_shape();
  if (image.rank() == 0) throw UsageError("the model does not declare the shape of its images");
  const ReverseProcess process(NoiseSchedule(options_.schedule, options_.steps, options.steps), of_,
                               {.sampler = sampler_of(options), .eta = options.eta});
  const bool guided = options.guidance != 1;
  const ClassInputs class_inputs =
      model_classes > 0 ? class_inputs_of(backend, classes, guided) : ClassInputs{};
  const Tensor start = Tensor::empty(data::batch_shape(samples, image));
  const auto draw = [&](std::uint64_t purpose, std::uint32_t step, const Tensor& to) {
    for (std::int64_t n = 0; n < samples; ++n) {
      const Random random({.seed = options.seed,
                           .purpose = purpose,
                           .step = static_cast<std::uint64_t>(first + n),  // of a sample
                           .shard = step});
      float* const elements = to.data<float>() + n * image.numel();
      for (std::int64_t i = 0; i < image.numel(); ++i)
        elements[i] = random.normal(static_cast<std::uint64_t>(i));
    }
  };
  draw(start_purpose, 0, start);
  Tape tape(backend);
  bool has_begun = false;
  const auto network = [&](const Tensor& x, std::int64_t timestep) {
    tape.begin({.training = false,
                .record = false,
                .compute = options.compute,
                .same_parameters = std::exchange(has_begun, true)});
    const Tensor input = guided ? twice(x) : x;
    Batch batch(0, {{"x", kernels::on_device(input, backend)}});
    batch.add("t", filled<float>(backend, {input.size(0)}, DType::float32, [&](float* t) {
                std::fill_n(t, input.size(0), static_cast<float>(timestep));
              }));
    if (model_classes > 0) {
      batch.add("y", class_inputs.y);
      batch.add("has_class", class_inputs.has_class);
    }
    const Tensor output = floats_of(model.forward(tape, batch));
    return guided ? guided_output(output, options.guidance, image.numel()) : output;
  };
  return process.run(start, {.network = network,
                             .draw =
                                 [&](std::int64_t step, const Tensor& noise) {
                                   draw(sampler_purpose, static_cast<std::uint32_t>(step), noise);
                                 },
                             .progress = progress});
}

}  // namespace lockstep::tasks
