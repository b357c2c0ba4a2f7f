// An operation of your own with its derivative, in a model of your own: ./snake train snake.ini
#include <lockstep/lockstep.h>
#include <lockstep/ops/check.h>

#include <cmath>

namespace ls = lockstep;
namespace ops = lockstep::ops;
using ls::Tensor, ls::Var;

/// y = x + sin(a x)^2 / a, of each element (Ziyin, Hartwig, Ueda, 2020).
struct Snake {
  static constexpr const char* name = "snake";
  Tensor x;
  float a = 1;
  Tensor y;

  static void operands(auto& op, auto&& each) {
    each(ops::in("x", op.x).by_row(), ops::out("y", op.y).by_row());
  }
  void check() const { ops::require_alike(name, "y", y, x); }
};

/// dx = dy (1 + sin(2 a x)).
struct SnakeBackward {
  static constexpr const char* name = "snake_backward";
  Tensor dy, x;
  float a = 1;
  Tensor dx;

  static void operands(auto& op, auto&& each) {
    each(ops::in("dy", op.dy).by_row(), ops::in("x", op.x).by_row(), ops::out("dx", op.dx).by_row());
  }
  void check() const {
    ops::require_alike(name, "dy", dy, x);
    ops::require_alike(name, "dx", dx, x);
  }
};

// How a CPU carries them out: in float32, also where activations are bf16 (Computes::in_float32 below).
void snake_on_cpu(ls::kernels::Backend&, const Snake& op) {
  const float* const x = op.x.data<float>();
  float* const y = op.y.data<float>();
  for (std::int64_t i = 0; i < op.x.numel(); ++i) {
    const float sine = std::sin(op.a * x[i]);
    y[i] = x[i] + sine * sine / op.a;
  }
}

void snake_backward_on_cpu(ls::kernels::Backend&, const SnakeBackward& op) {
  const float *const dy = op.dy.data<float>(), *const x = op.x.data<float>();
  float* const dx = op.dx.data<float>();
  for (std::int64_t i = 0; i < op.x.numel(); ++i) dx[i] = dy[i] * (1 + std::sin(2 * op.a * x[i]));
}

/// The differentiable function.
Var snake(const Var& x, float a) {
  ls::kernels::Backend& backend = x.tape().backend();
  if (backend.device() == ls::Device::cpu())  // to enter a function again is harmless
    backend.enter<&snake_on_cpu, &snake_backward_on_cpu>(ls::kernels::Computes::in_float32);
  const Tensor y = backend.empty(x.shape(), x.value().dtype());
  backend.run(Snake{x.value(), a, y});
  return x.tape().record(y, {&x}, [x, a](ls::Tape& tape, const Tensor& dy) {
    const Tensor dx = tape.backend().empty(dy.shape(), dy.dtype());
    tape.backend().run(SnakeBackward{dy, x.value(), a, dx});
    tape.add_gradient(x, dx);
  });
}

/// Two layers with the activation between them: by the operation, or composed of functions that are there.
struct Network final : ls::Model {
  struct Options {
    std::int64_t width = 64;
    double a = 1;
    bool composed = false;
    LOCKSTEP_KEYS(width, "features of the hidden layer", a, "frequency of the activation", composed,
                  "whether the activation is composed of built-in functions")
  };
  Network(const Options& chosen, std::uint64_t seed)
      : Model(seed),
        options(chosen),
        hidden(*this, "hidden", 5, chosen.width),
        out(*this, "out", chosen.width, 1) {}

  Var forward(ls::Tape& tape, const ls::Batch& batch) override {
    const Var h = hidden(tape.batch(batch["x"]));
    const auto a = static_cast<float>(options.a);
    return out(options.composed ? h + ls::square(ls::sin(a * h)) / a : snake(h, a));
  }

  Options options;
  ls::nn::Linear hidden, out;
};

int main(int argc, char** argv) { return ls::App("snake").model<Network>("snake").run(argc, argv); }
