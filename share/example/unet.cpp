// A denoising diffusion model with layers and data of its own: mpirun -n 2 ./unet RUN STEPS
// A UNet learns to tell the noise in pictures of discs (Ho, Jain, Abbeel 2020; cosine schedule of Nichol,
// Dhariwal 2021).
#include <lockstep/lockstep.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <optional>

namespace ls = lockstep;
namespace nn = lockstep::nn;
using ls::Tensor, ls::Var;

constexpr std::int64_t side = 16;          // of a picture
constexpr std::int64_t times = 200;        // 0: hardly any noise; 199: hardly anything else
constexpr std::int64_t time_width = 32;    // of what a layer is told about the time
constexpr std::array widths = {16L, 32L};  // channels at each size
constexpr int groups = 8;                  // of channels that are normalised together

// Sample i, which is the same wherever it is read: x [2, side, side], a noisy picture and its noise; y its
// time.
struct Discs final : ls::Dataset {
  std::int64_t size() const override { return 1'000'000; }
  const std::vector<ls::Field>& fields() const override { return fields_; }
  std::string name() const override { return "discs"; }

  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    check_read(samples, into);
    float* noisy = into[0].data<float>();
    for (std::size_t n = 0; n < samples.size(); ++n, noisy += 2 * side * side) {
      const auto draws = [&](std::uint64_t purpose) {  // a pure function of the sample
        return ls::Random({.purpose = purpose, .step = std::uint64_t(samples[n])});
      };
      const ls::Random disc = draws(ls::purpose_of("disc")), noise = draws(ls::purpose_of("noise"));
      const float top = side * disc.uniform(0), left = side * disc.uniform(1),
                  radius = 2 + 3 * disc.uniform(2);
      const std::int64_t time = disc.below(3, times);
      const double angle = std::acos(0.0) * (double(time) + 0.5) / times;
      const float signal = float(std::cos(angle)), spread = float(std::sin(angle));
      for (std::int64_t at = 0; at < side * side; ++at) {
        const float distance = std::hypot(float(at / side) - top, float(at % side) - left);
        const float drawn = noise.normal(std::uint64_t(at));
        noisy[at] = signal * (distance < radius ? 1.0f : -1.0f) + spread * drawn;
        noisy[side * side + at] = drawn;
      }
      into[1].data<std::int64_t>()[n] = time;
    }
  }

 private:
  std::vector<ls::Field> fields_{{.name = "x", .shape = {2, side, side}},
                                 {.name = "y", .dtype = ls::DType::int64, .classes = times}};
};

// Row t: sines and cosines of t at time_width / 2 frequencies from 1 down to 1 / 10000.
Tensor sinusoids() {
  Tensor table = Tensor::empty({times, time_width});
  for (std::int64_t t = 0; t < times; ++t)
    for (std::int64_t i = 0; i < time_width; ++i) {
      const double angle = double(t) * std::pow(1e-4, double(i / 2) / (time_width / 2 - 1));
      table.data<float>()[t * time_width + i] = float(i % 2 ? std::cos(angle) : std::sin(angle));
    }
  return table;
}

// A layer: forward() is what it computes when it is called; members register themselves under their names.
struct TimeEmbedding : nn::Layer<TimeEmbedding> {
  using Layer::Layer;
  nn::StateBuffer table{*this, "table", sinusoids()};  // goes where the model goes, and is not trained
  nn::Sequential mlp{*this, "mlp", nn::make<nn::Linear>(time_width, time_width), ls::silu,
                     nn::make<nn::Linear>(time_width, time_width)};

  Var forward(ls::Tape& tape, const Tensor& time) {
    return mlp(ls::embedding(time, tape.constant(table.value)));
  }
};

struct ResidualBlock : nn::Layer<ResidualBlock> {
  ResidualBlock(nn::Module& parent, std::string_view name, std::int64_t in, std::int64_t out)
      : Layer(parent, name),
        norm1(*this, "norm1", groups, in),
        conv1(*this, "conv1", in, out, 3, {.padding = 1}),
        shift(*this, "shift", time_width, out),
        norm2(*this, "norm2", groups, out),
        conv2(*this, "conv2", out, out, 3, {.padding = 1}) {
    if (in != out) shortcut.emplace(*this, "shortcut", in, out, 1);
  }

  Var forward(const Var& x, const Var& time) {
    const Var h = conv1(silu(norm1(x))), by = shift(silu(time));  // by: [N, out]
    const Var shifted = h + reshape(by, {by.shape()[0], by.shape()[1], 1, 1});
    return conv2(silu(norm2(shifted))) + (shortcut ? (*shortcut)(x) : x);
  }

  nn::GroupNorm norm1;
  nn::Conv2d conv1;
  nn::Linear shift;  // per channel, by the time
  nn::GroupNorm norm2;
  nn::Conv2d conv2;
  std::optional<nn::Conv2d> shortcut;
};

struct UNet : nn::Module {
  TimeEmbedding time{*this, "time"};
  nn::Conv2d in{*this, "in", 1, widths[0], 3, {.padding = 1}};
  nn::List<ResidualBlock> down{*this, "down"};
  nn::List<nn::Conv2d> halve{*this, "halve"};
  ResidualBlock middle{*this, "middle", widths.back(), widths.back()};
  nn::List<nn::ConvTranspose2d> twice{*this, "twice"};
  nn::List<ResidualBlock> up{*this, "up"};
  nn::Sequential out{*this, "out", nn::make<nn::GroupNorm>(groups, widths[0]), ls::silu,
                     nn::make<nn::Conv2d>(widths[0], 1, 3, nn::Conv2dOptions{.padding = 1})};

  UNet() {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      down.emplace_back(widths[i ? i - 1 : 0], widths[i]);
      halve.emplace_back(widths[i], widths[i], 3, nn::Conv2dOptions{.stride = 2, .padding = 1});
    }
    for (std::size_t i = widths.size(); i-- > 0;) {
      const std::int64_t next = widths[i ? i - 1 : 0];
      twice.emplace_back(widths[i], widths[i], 2, nn::ConvTranspose2dOptions{.stride = 2});
      up.emplace_back(2 * widths[i], next);
    }
  }

  // The noise in x [N, 0, ...] at times y.
  Var forward(ls::Tape& tape, const ls::Batch& batch) {
    const Var t = time(tape, batch["y"]);
    std::array<Var, widths.size()> skipped;
    Var h = in(ls::narrow(tape.batch(batch["x"]), 1, 0, 1));
    for (std::size_t i = 0; i < widths.size(); ++i) h = halve[i](skipped[i] = down[i](h, t));
    h = middle(h, t);
    for (std::size_t i = 0; i < widths.size(); ++i)
      h = up[i](ls::concat({twice[i](h), skipped[widths.size() - 1 - i]}, 1), t);
    return out(h);
  }
};

int main(int argc, char** argv) {
  return ls::run(argc, argv, [&](ls::Session& session) {
    if (argc != 3) throw ls::UsageError("usage: unet RUN STEPS");
    const long steps = std::atol(argv[2]);
    session.use_device("auto");
    session.set_run({.global_batch = 32, .shards = 4});
    UNet model;
    model.to(session.backend());
    ls::DataParallel replicas(model, session);
    ls::AdamW adamw(replicas, {.lr = 2e-3});
    ls::Ema ema(model, {0.999});  // the weights that one would draw samples with
    const Discs discs;
    ls::Loader loader(discs, session);
    ls::Store store(argv[1], session);

    auto step = store.resume(model, adamw, ema);
    for (ls::Progress progress(session, step, steps); step < steps; ++step) {
      const auto result = replicas.step(loader.at(step), [&](ls::Tape& tape, const ls::Batch& batch) {
        const Var noise = ls::narrow(tape.batch(batch["x"]), 1, 1, 1);
        return ls::mse(model.forward(tape, batch), noise.value());
      });
      adamw.step();
      ema.update();
      progress.step(step + 1, result.mean_loss());
      if ((step + 1) % 20 == 0 || step + 1 == steps) store.save(step + 1, model, adamw, ema);
    }
  });
}
