// A program with a task that makes samples: what sampling needs of any task. For sample.sh.
#include <lockstep/lockstep.h>

#include <charconv>
#include <fstream>

namespace ls = lockstep;

/// An image for each class, which training makes the mean of the data.
struct Stamps final : ls::Model {
  struct Options {
    std::int64_t height = 8, width = 8, channels = 1, num_classes = 0;
    LOCKSTEP_KEYS(height, "of images", width, "of images", channels, "of images", num_classes, "0: none")
  };
  Stamps(const Options& options, std::uint64_t seed)
      : Model(seed),
        image{options.channels, options.height, options.width},
        num_classes(options.num_classes),
        stamps(*this, "stamps", std::max<std::int64_t>(1, num_classes), image.numel()) {}

  std::vector<std::string> reads() const override {
    return num_classes > 0 ? std::vector<std::string>{"x", "y"} : std::vector<std::string>{"x"};
  }
  std::int64_t input_classes() const override { return num_classes; }
  ls::Shape sample_shape(std::int64_t) const override { return image; }
  ls::Var forward(ls::Tape& tape, const ls::Batch& batch) override {
    if (num_classes > 0) return stamps(tape, batch["y"]);
    const ls::Tensor all = ls::Tensor::zeros({batch.samples()}, ls::DType::int64);
    return stamps(tape, ls::kernels::on_device(all, tape.backend()));
  }

  ls::Shape image;
  std::int64_t num_classes;
  ls::nn::Embedding stamps;
};

/// A sample is its class's image and a sum of noise, one for each of `steps`.
struct Stamping final : ls::Task, ls::Generative {
  struct Options {
    double noise = 0.1;
    std::int64_t max_steps = 10;
    std::string tells{};
    LOCKSTEP_KEYS(noise, "of samples", max_steps, "of sampling", tells,
                  "a file that appears after the first step of a sample")
  };
  explicit Stamping(const Options& options)
      : noise(options.noise), max_steps(options.max_steps), tells(options.tells) {}

  bool takes_unit_range() const override { return true; }
  ls::Loss loss(ls::Tape& tape, ls::Model& model, const ls::Batch& batch) override {
    const ls::Tensor& x = batch["x"];
    return ls::mse(model(tape, batch), x.reshape({x.size(0), x.numel() / x.size(0)}));
  }

  void check_sampling(const ls::Model& model, const ls::SampleOptions& options) const override {
    if (!dynamic_cast<const Stamps*>(&model)) throw ls::UsageError("sampler: needs the model stamps");
    if (options.sampler != "ddpm" && options.sampler != "ddim")
      throw ls::UsageError("sampler {}: is neither ddpm nor ddim", options.sampler);
    sampling_steps(options);
  }
  std::int64_t sampling_steps(const ls::SampleOptions& options) const override {
    std::int64_t steps = max_steps;
    const char* const end = options.steps.data() + options.steps.size();
    if (!options.steps.empty() &&
        (std::from_chars(options.steps.data(), end, steps).ptr != end || steps < 1 || steps > max_steps))
      throw ls::UsageError("steps {}: does not fit the {} steps that there are", options.steps, max_steps);
    return steps;
  }
  ls::Tensor sample(ls::Model& model, ls::kernels::Backend& backend, const ls::SampleOptions& options,
                    std::int64_t first, std::span<const std::int64_t> classes,
                    const std::function<void()>& progress) override {
    const auto& stamps = dynamic_cast<const Stamps&>(model);
    const ls::Tensor images = ls::kernels::on_cpu(stamps.stamps.weight.value, &backend);
    const auto count = static_cast<std::int64_t>(classes.size()), pixels = stamps.image.numel();
    const ls::Tensor samples = ls::Tensor::empty({count, stamps.image[0], stamps.image[1], stamps.image[2]});
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = std::max<std::int64_t>(0, classes[static_cast<std::size_t>(i)]);
      std::copy_n(images.data<float>() + row * pixels, pixels, samples.data<float>() + i * pixels);
    }
    for (std::int64_t step = 0; step < sampling_steps(options); ++step, progress()) {
      for (std::int64_t i = 0; i < count; ++i) {
        const ls::Random random({options.seed, ls::purpose_of("stamping"),
                                 static_cast<std::uint64_t>(first + i), static_cast<std::uint32_t>(step)});
        for (std::int64_t k = 0; k < pixels; ++k)
          samples.data<float>()[i * pixels + k] +=
              static_cast<float>(noise * options.guidance) * random.normal(static_cast<std::uint64_t>(k));
      }
      if (step == 0 && !tells.empty()) std::ofstream(tells) << "sampling\n";
    }
    return samples;
  }

  double noise;
  std::int64_t max_steps;
  std::string tells;
};

/// The absolute error of what a diffusion estimates.
struct Robust final : ls::tasks::Diffusion {
  using Diffusion::Diffusion;
  ls::Var losses(const ls::Var& output, const ls::tasks::NoisedImages& images) const override {
    return mean(abs(to_float32(output) - objective().target(output.tape(), images)), {1, 2, 3});
  }
};

int main(int argc, char** argv) {
  return ls::App("stamps")
      .model<Stamps>("stamps")
      .task<Stamping>("stamping")
      .task<Robust>("robust")
      .run(argc, argv);
}
