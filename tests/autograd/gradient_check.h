// Gradients against central differences.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/autograd/tape.h"

namespace lockstep::test {

using Function = std::function<Var(Tape& tape, const std::vector<Var>& inputs)>;

/// Elements drawn from N(0, 1), by seed.
Tensor normal_tensor(Shape shape, std::uint64_t seed);
/// Elements at least 0.2 apart from each other and 0.1 from zero, in random order: no kink within a
/// difference.
Tensor spaced_tensor(Shape shape, std::uint64_t seed);

struct GradientCheck {
  bool training = true;
  double tolerance = 5e-4;  ///< of max(1, largest gradient)
};

/// Checks d(sum of w * f(inputs)) / d(inputs), w random, against differences of fourth order. Fails the
/// current test case with the input, the element and both values.
void check_gradients(const Function& function, const std::vector<Tensor>& inputs,
                     const GradientCheck& options = {});

}  // namespace lockstep::test
