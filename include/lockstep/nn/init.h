// How parameters are filled before training.
#pragma once

#include <cstdint>

#include "lockstep/autograd/param.h"

namespace lockstep::nn {

/// A distribution to draw a parameter's first value from.
struct Init {
  enum class Kind { constant, uniform, normal };
  Kind kind = Kind::constant;
  float scale = 0;  ///< the constant; the bound of U(-bound, bound); the deviation of N(0, deviation^2)

  static constexpr Init constant(float value) { return {Kind::constant, value}; }
  static constexpr Init uniform(float bound) { return {Kind::uniform, bound}; }
  static constexpr Init normal(float deviation) { return {Kind::normal, deviation}; }
};

/// Overwrites the parameter's value (float32, CPU). Draws are keyed by (seed, name): they depend neither on
/// the order in which a model is built nor on its other parameters.
void initialize(Param& param, const Init& init, std::uint64_t seed);

/// PyTorch's default for weights and biases of Linear and Conv2d: U(+-1 / sqrt(fan_in)).
Init fan_in_uniform(std::int64_t fan_in);

}  // namespace lockstep::nn
