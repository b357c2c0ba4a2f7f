// Graphs of different sizes: a network that learns to move particles on springs: ./graph train graph.ini
#include <lockstep/lockstep.h>

#include <array>
#include <cmath>

namespace ls = lockstep;
using ls::Tensor, ls::Var;
constexpr double time_step = 0.1;

/// Particles in a plane, some of which springs join, and how they move. Samples have 3 to 12 particles, which
/// are the rows of /particles [position, velocity] and /y [each of `steps` later states]; a spring is a row
/// of /from and /to in each direction: the numbers of its particles.
class Springs final : public ls::Dataset {
 public:
  struct Options {
    std::int64_t samples = 2000, steps = 5, seed = 1;
    LOCKSTEP_KEYS(samples, "how many", steps, "states that are to be predicted, 0.1 s apart", seed,
                  "of the draws")
  };
  Springs(const Options& options, const ls::data::Request&) {
    using D = ls::DType;
    fields_ = {{.name = "particles", .shape = {4}, .ragged = true},
               {.name = "from", .dtype = D::int64, .ragged = true, .index_of = "particles"},
               {.name = "to", .dtype = D::int64, .ragged = true, .index_of = "particles"},
               {.name = "y", .shape = {4 * options.steps}, .ragged = true}};
    const auto seed = static_cast<std::uint64_t>(options.seed);
    for (std::int64_t i = 0; i < options.samples; ++i)
      samples_.push_back(simulate(
          ls::Random({seed, ls::purpose_of("springs"), static_cast<std::uint64_t>(i), 0}), options.steps));
  }
  std::int64_t size() const override { return std::ssize(samples_); }
  const std::vector<ls::Field>& fields() const override { return fields_; }
  std::string name() const override { return "particles on springs"; }
  std::int64_t rows(std::size_t field, std::span<const std::int64_t> samples) const override {
    std::int64_t rows = 0;
    for (const std::int64_t i : samples)
      rows += (field == 1 || field == 2 ? sample(i).springs : sample(i).particles);
    return rows;
  }
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    check_read(samples, into);
    float *state = into[0].data<float>(), *later = into[3].data<float>();
    std::int64_t *from = into[1].data<std::int64_t>(), *to = into[2].data<std::int64_t>();
    for (const std::int64_t i : samples) {
      state = std::ranges::copy(sample(i).state, state).out;
      from = std::ranges::copy(sample(i).from, from).out;
      to = std::ranges::copy(sample(i).to, to).out;
      later = std::ranges::copy(sample(i).later, later).out;
    }
  }

 private:
  struct Sample {
    std::int64_t particles = 0, springs = 0;
    std::vector<float> state, later;     // [particles, 4], [particles, 4 * steps]
    std::vector<std::int64_t> from, to;  // [springs], twice each
  };
  const Sample& sample(std::int64_t i) const { return samples_[static_cast<std::size_t>(i)]; }

  /// Springs of length 1, softer where particles meet, by the leapfrog method in steps of 0.005.
  static Sample simulate(const ls::Random& random, std::int64_t steps) {
    constexpr int substeps = 20;
    constexpr double dt = time_step / substeps;
    Sample sample;
    sample.particles = 3 + random.below(0, 10);
    const auto n = static_cast<std::size_t>(sample.particles);
    std::uint64_t draws = 1;
    std::vector<std::array<double, 4>> particles(n);
    for (auto& particle : particles)
      for (double& value : particle) value = random.normal(draws++);
    for (std::size_t a = 0; a < n; ++a)
      for (std::size_t b = 0; b < a; ++b)
        if (random.below(draws++, 10) < 4)
          for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
            sample.from.push_back(static_cast<std::int64_t>(from));
            sample.to.push_back(static_cast<std::int64_t>(to));
          }
    sample.springs = std::ssize(sample.from);
    const auto kick = [&](double time) {
      for (std::size_t s = 0; s < sample.from.size(); ++s) {
        const auto& other = particles[static_cast<std::size_t>(sample.from[s])];
        auto& own = particles[static_cast<std::size_t>(sample.to[s])];
        const double x = other[0] - own[0], y = other[1] - own[1], distance = std::sqrt(x * x + y * y + 0.05);
        own[2] += time * 2 * (distance - 1) / distance * x;
        own[3] += time * 2 * (distance - 1) / distance * y;
      }
    };
    const auto width = static_cast<std::size_t>(4 * steps);
    sample.later.resize(n * width);
    for (const auto& particle : particles)
      sample.state.insert(sample.state.end(), particle.begin(), particle.end());
    for (std::size_t step = 0; step < static_cast<std::size_t>(steps); ++step) {
      for (int i = 0; i < substeps; ++i) {
        kick(dt / 2);
        for (auto& particle : particles)
          for (std::size_t d = 0; d < 2; ++d) particle[d] += dt * particle[d + 2];
        kick(dt / 2);
      }
      for (std::size_t p = 0; p < n; ++p)
        std::ranges::copy(particles[p], &sample.later[p * width + 4 * step]);
    }
    return sample;
  }

  std::vector<ls::Field> fields_;
  std::vector<Sample> samples_;
};

/// Each step: a message along each spring, from what differs between its ends; their sum at each particle;
/// and what these do to its state.
struct Network final : ls::Model {
  struct Options {
    std::int64_t width = 64, steps = 5;
    LOCKSTEP_KEYS(width, "features of messages", steps, "states that are predicted, each from the one before")
  };
  Network(const Options& options, std::uint64_t seed)
      : Model(seed),
        steps(options.steps),
        edge_in(*this, "edge.0", 4, options.width),  // edge.0.weight, edge.0.bias
        edge_out(*this, "edge.2", options.width, options.width),
        node_in(*this, "node.0", 2 + options.width, options.width),
        node_out(*this, "node.2", options.width, 4) {}

  std::vector<std::string> reads() const override { return {"particles", "from", "to"}; }
  std::string output_rows() const override { return "particles"; }
  Var forward(ls::Tape& tape, const ls::Batch& batch) override {
    constexpr auto silu = ls::ops::Activation::silu;
    Var state = tape.batch(batch["particles"]);  // [particles of all samples, 4]
    const Tensor &from = batch["from"], &to = batch["to"];
    std::vector<Var> states;
    for (std::int64_t step = 0; step < steps; ++step) {
      const Var ends = ls::index_select(state, 0, from) - ls::index_select(state, 0, to);
      const Var messages = ls::nn::feed_forward(ends, edge_in, silu, edge_out);
      const Var velocity = ls::narrow(state, 1, 2, 2);
      const Var seen = ls::concat({velocity, ls::segment_sum(messages, to, state.shape()[0])}, 1);
      const Var change = ls::nn::feed_forward(seen, node_in, silu, node_out);
      state = state + change + ls::pad(static_cast<float>(time_step) * velocity, {{}, {0, 2}});
      states.push_back(state);
    }
    return ls::concat(states, 1);
  }

  std::int64_t steps;
  ls::nn::Linear edge_in, edge_out, node_in, node_out;
};

int main(int argc, char** argv) {
  return ls::App("graph").model<Network>("particles").data<Springs>("springs").run(argc, argv);
}
