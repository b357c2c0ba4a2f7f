// A program whose model, task or registrations are wrong in the way that the environment variable WRONG says.
// For wrong_program.sh.
#include <lockstep/lockstep.h>

#include <cstdlib>
#include <stdexcept>

#include "base/launcher.h"

namespace ls = lockstep;

namespace {

bool wrong(std::string_view how) {
  const char* const said = std::getenv("WRONG");
  return said && said == how;
}

bool on_the_last_rank() {
  return ls::launcher::rank() < 0 || ls::launcher::rank() + 1 == ls::launcher::size();
}

/// WRONG = PLACE_throws: on all ranks; PLACE_throws_once: on the last.
void may_throw(const std::string& place) {
  if (wrong(place + "_throws") || (wrong(place + "_throws_once") && on_the_last_rank()))
    throw std::runtime_error("out of luck");
}

struct Sum final : ls::Model {
  Sum(std::uint64_t seed) : Model(seed), x(*this, "x", 4, 8), z(*this, "z", 2, 8), y(*this, "y", 8, 1) {
    may_throw("constructor");
  }
  std::vector<std::string> reads() const override {
    if (wrong("read_field")) return {"speed"};
    return {};
  }
  ls::Var forward(ls::Tape& tape, const ls::Batch& batch) override {
    may_throw("forward");
    if (tape.pass().training) may_throw("training");
    if (wrong("throws_a_number")) throw 7;
    const ls::Tensor& input = batch[wrong("field") ? "speed" : wrong("width") ? "wide" : "x"];
    return y(ls::relu(x(tape.batch(input)) + z(tape.batch(batch["z"]))));
  }
  ls::nn::Linear x, z, y;
};

/// Reads scalars [N] as one row of N: a batch of one sample fits.
struct Misread final : ls::Model {
  explicit Misread(std::uint64_t seed) : Model(seed), y(*this, "y", 1, 1) {}
  ls::Var forward(ls::Tape& tape, const ls::Batch& batch) override { return y(tape.batch(batch["level"])); }
  ls::nn::Linear y;
};

/// No parameters.
struct Constant final : ls::Model {
  using Model::Model;
  ls::Var forward(ls::Tape& tape, const ls::Batch& batch) override { return tape.batch(batch["y"]); }
};

struct Near final : ls::Task {
  void check(const ls::Model&, const ls::data::Dataset&) override { may_throw("check"); }
  ls::Loss loss(ls::Tape& tape, ls::Model& model, const ls::Batch& batch) override {
    may_throw("loss");
    if (wrong("no_loss")) return {};
    const ls::Var output = wrong("forward") ? model.forward(tape, batch) : model(tape, batch);
    if (wrong("constant_loss")) return ls::mse(tape.batch(batch["x"]), batch["x"]);
    if (wrong("target_type")) return ls::cross_entropy(output, batch["y"]);
    return ls::mse(output, batch[wrong("target_field") ? "speed" : wrong("target_width") ? "x" : "y"]);
  }
  std::vector<ls::Metric> metrics() const override {
    may_throw("metrics");
    std::vector<ls::Metric> metrics{{.name = "error"}};
    if (wrong("metric_twice")) metrics.push_back({.name = "error"});
    if (wrong("metric_loss")) metrics.push_back({.name = "loss"});
    if (wrong("metric_without_sums")) metrics.push_back({.name = "other", .sums = 0});
    return metrics;
  }
  void evaluate(ls::Evaluation& to, const ls::Batch&, const ls::Var&) override {
    may_throw("evaluate");
    if (wrong("metric_unknown")) to.add("eror", {1, 1});
    wrong("metric_sums") ? to.add("error", {1, 1, 1}) : to.add("error", {1, 1});
  }
};

}  // namespace

int main(int argc, char** argv) {
  ls::App app("wrong");
  app.model<Sum>(wrong("blank") ? "two words" : "sum")
      .model<Constant>("constant")
      .model<Misread>("misread")
      .task<Near>("near");
  if (wrong("model_twice")) app.model<Constant>("sum");
  if (wrong("replaced_twice")) app.model<Sum>("mlp").model<Sum>("mlp");
  if (wrong("task_twice")) app.task<Near>("near");
  if (wrong("replaced") || (wrong("replaced_once") && on_the_last_rank()))
    app.model<Sum>("mlp").task<Near>("regression");
  if (wrong("no_name")) app.task<Near>("");
  if (wrong("ranks") && on_the_last_rank()) app.model<Constant>("another");
  if (wrong("blank_once") && on_the_last_rank()) app.model<Constant>("a name");
  return app.run(argc, argv);
}
