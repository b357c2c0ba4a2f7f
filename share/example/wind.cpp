// Your own model, task and data with every verb of lockstep: ./wind train wind.ini
#include <lockstep/lockstep.h>

namespace ls = lockstep;

/// The power of a wind turbine from its state and the hour: two inputs, one output.
struct Turbine final : ls::Model {
  struct Options {
    std::int64_t width = 64;
    double dropout = 0;
    LOCKSTEP_KEYS(width, "features of the hidden layers", dropout, "probability of zeroing a hidden feature")
  };
  Turbine(const Options& options, std::uint64_t seed)
      : Model(seed),
        state(*this, "state", 5, options.width),  // registers state.weight, state.bias
        hour(*this, "hour", 2, options.width),
        dropout(*this, "dropout", static_cast<float>(options.dropout)),
        hidden(*this, "hidden", options.width, options.width),
        power(*this, "power", options.width, 1) {}

  ls::Var forward(ls::Tape& tape, const ls::Batch& batch) override {  // fields of the data file
    const ls::Var both = state(tape.batch(batch["state"])) + hour(tape.batch(batch["hour"]));
    return power(hidden(dropout(ls::relu(both)), ls::ops::Activation::relu));
  }

  ls::nn::Linear state, hour;
  ls::nn::Dropout dropout;
  ls::nn::Linear hidden, power;
};

/// Errors weigh less where they are large.
struct Forecast final : ls::Task {
  ls::Loss loss(ls::Tape& tape, ls::Model& model, const ls::Batch& batch) override {
    return ls::smooth_l1(model(tape, batch), batch["power"], 0.5f);
  }
  std::vector<ls::Metric> metrics() const override {
    return {{.name = "rmse", .value = ls::Metric::root_mean},
            {.name = "within_0.1", .better = ls::Better::higher}};
  }
  void evaluate(ls::Evaluation& to, const ls::Batch& batch, const ls::Var& output) override {
    const ls::Tensor found = ls::floats_of(output), wanted = ls::floats_of(batch["power"], output.tape());
    for (std::int64_t i = 0; i < wanted.numel(); ++i) {
      const double error = found.data<float>()[i] - wanted.data<float>()[i];
      to.add("rmse", {error * error, 1});
      to.add("within_0.1", {error < 0.1 && error > -0.1 ? 1.0 : 0.0, 1});
    }
  }
  std::string target() const override { return "power"; }
};

int main(int argc, char** argv) {
  return ls::App("wind").model<Turbine>("turbine").task<Forecast>("forecast").run(argc, argv);
}
