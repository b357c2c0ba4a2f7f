// Formulas of elements: value and slope, written once for CPU and GPU. What is named here is an operation on
// both devices (Map in elementwise.h): add a struct, and its name to Formulas.
//
// A formula is computed in float32, element by element, and has no branch that loops could not vectorise. One
// that says `broadcasts = false` takes inputs of its result's shape and type only: no kernels are made for
// others.
#pragma once

#include <limits>

#include "lockstep/ops/math.h"

namespace lockstep::ops {

struct Sum {
  static constexpr const char* name = "add";
  static constexpr int inputs = 2;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float a, float b) const { return a + b; }
};

struct Scaled {
  static constexpr const char* name = "scale";
  static constexpr int inputs = 1;
  static constexpr bool broadcasts = false;
  float factor = 1;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float x) const { return factor * x; }
};

struct Product {
  static constexpr const char* name = "mul";
  static constexpr int inputs = 2;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float a, float b) const { return a * b; }
};

// Functions of one input, with their slopes: slope(x), which is slope(value(x)) where slope_by_value is said.
// A function with attributes has them as members, and members use them.

struct Relu {
  static constexpr const char *name = "relu", *slope_name = "relu_backward";
  static constexpr bool slope_by_value = true;
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return x < 0.0f ? 0.0f : x; }  // NaN stays
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) { return x > 0.0f ? 1.0f : 0.0f; }
};

struct Silu {
  static constexpr const char *name = "silu", *slope_name = "silu_backward";
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return x * logistic(x).value; }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) {
    const Logistic at = logistic(x);
    return at.value + (at.slope == 0.0f ? 0.0f : x * at.slope);  // never infinity * 0
  }
};

// GELU: Hendrycks, Gimpel, "Gaussian error linear units", 2016.
struct GeluErf {
  static constexpr const char *name = "gelu_erf", *slope_name = "gelu_erf_backward";
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return x * normal(x).cdf; }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) {
    const Normal at = normal(x);
    return multiply_add(at.density == 0.0f ? 0.0f : x, at.density, at.cdf);  // never infinity * 0
  }
};

/// With 0.5 (1 + tanh u) = sigmoid(2 u) it needs one exponential and loses nothing in the lower tail.
struct GeluTanh {
  static constexpr const char *name = "gelu_tanh", *slope_name = "gelu_tanh_backward";
  static constexpr float linear = 1.59576912f;  // 2 sqrt(2 / pi)
  static constexpr float cubic = 0.044715f * linear;
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) {
    return x * logistic(x * multiply_add(cubic, x * x, linear)).value;
  }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) {
    const float square = x * x;
    const Logistic at = logistic(x * multiply_add(cubic, square, linear));
    const float inner = x * multiply_add(3.0f * cubic, square, linear);  // x times the slope of the argument
    return at.value + (at.slope == 0.0f ? 0.0f : at.slope * inner);      // far out inner overflows
  }
};

struct Tanh {
  static constexpr const char *name = "tanh", *slope_name = "tanh_backward";
  static constexpr bool slope_by_value = true;
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return hyperbolic_tangent(x); }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float y) { return multiply_add(-y, y, 1.0f); }
};

/// y = f(x)
template <class Function>
struct Value {
  static constexpr const char* name = Function::name;
  static constexpr int inputs = 1;
  static constexpr bool broadcasts = false;
  Function function;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float x) const { return function.value(x); }
};

/// dx = dy f'(x)
template <class Function>
struct Slope {
  static constexpr const char* name = Function::slope_name;
  static constexpr int inputs = 2;
  static constexpr bool broadcasts = false;
  Function function;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float x, float dy) const { return dy * function.slope(x); }
};

// Terms of a sum (Reduce in elementwise.h), in float64: T is a double, or a vector of them.

struct Itself {
  static constexpr const char* name = "total";
  static constexpr int inputs = 1;
  template <class T>
  LOCKSTEP_ON_ANY_DEVICE T operator()(T x) const {
    return x;
  }
};

struct SquaredDifference {
  static constexpr const char* name = "squared_error";
  static constexpr int inputs = 2;
  template <class T>
  LOCKSTEP_ON_ANY_DEVICE T operator()(T a, T b) const {
    const T off = a - b;
    return off * off;
  }
};

// Folds (ReduceAxes in reduction.h): join(a, b) of two elements or of two folds, beginning with `start`. T is
// float or double.

struct Total {
  static constexpr const char* name = "sum";
  static constexpr float start = 0;
  template <class T>
  LOCKSTEP_ON_ANY_DEVICE static T join(T a, T b) {
    return a + b;
  }
};

struct Largest {  // NaN stays
  static constexpr const char* name = "amax";
  static constexpr float start = -std::numeric_limits<float>::infinity();
  template <class T>
  LOCKSTEP_ON_ANY_DEVICE static T join(T a, T b) {
    return (b > a) | (b != b) ? b : a;
  }
};

struct Smallest {
  static constexpr const char* name = "amin";
  static constexpr float start = std::numeric_limits<float>::infinity();
  template <class T>
  LOCKSTEP_ON_ANY_DEVICE static T join(T a, T b) {
    return (b < a) | (b != b) ? b : a;
  }
};

// Losses of an element and its target, with their slopes in the element. Term: the loss in one pass.

struct SquaredError {
  static constexpr const char *name = "squared_error_terms", *slope_name = "squared_error_backward";
  using Term = SquaredDifference;
  LOCKSTEP_ON_ANY_DEVICE float value(float x, float target) const { return (x - target) * (x - target); }
  LOCKSTEP_ON_ANY_DEVICE float slope(float x, float target) const { return 2.0f * (x - target); }
};

struct AbsoluteError {
  static constexpr const char *name = "absolute_error_terms", *slope_name = "absolute_error_backward";
  LOCKSTEP_ON_ANY_DEVICE float value(float x, float target) const { return absolute(x - target); }
  LOCKSTEP_ON_ANY_DEVICE float slope(float x, float target) const {
    return x > target ? 1.0f : x < target ? -1.0f : x - target;  // 0, or not a number
  }
};

/// Quadratic within `beta` > 0 of the target, linear beyond (Huber, 1964).
struct SmoothAbsoluteError {
  static constexpr const char *name = "smooth_l1_terms", *slope_name = "smooth_l1_backward";
  float beta = 1;
  LOCKSTEP_ON_ANY_DEVICE float value(float x, float target) const {
    const float off = absolute(x - target);
    return off < beta ? 0.5f * off * off / beta : off - 0.5f * beta;
  }
  LOCKSTEP_ON_ANY_DEVICE float slope(float x, float target) const {
    const float off = (x - target) / beta;
    return off > 1.0f ? 1.0f : off < -1.0f ? -1.0f : off;
  }
};

/// -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)).
struct BinaryCrossEntropy {
  static constexpr const char *name = "bce_with_logits_terms", *slope_name = "bce_with_logits_backward";
  LOCKSTEP_ON_ANY_DEVICE float value(float x, float target) const {
    const float positive = x > 0.0f ? x : x < 0.0f ? 0.0f : x;
    return positive - x * target + logarithm_one_plus(exponential(-absolute(x)));
  }
  LOCKSTEP_ON_ANY_DEVICE float slope(float x, float target) const { return sigmoid(x) - target; }
};

/// y = loss(x, target)
template <class Loss>
struct LossTerm {
  static constexpr const char* name = Loss::name;
  static constexpr int inputs = 2;
  Loss loss;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float x, float target) const { return loss.value(x, target); }
};

/// dx = factor d(loss) / dx
template <class Loss>
struct LossSlope {
  static constexpr const char* name = Loss::slope_name;
  static constexpr int inputs = 3;
  Loss loss;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float x, float target, float factor) const {
    return factor * loss.slope(x, target);
  }
};

template <class... Formula>
struct FormulaList {};

/// All that devices carry out.
template <class... Function>
using WithFunctions = FormulaList<Sum, Product, Scaled, Value<Function>..., Slope<Function>...>;
using Formulas = WithFunctions<Relu, Silu, GeluErf, GeluTanh, Tanh>;
template <class... Loss>
using WithLosses = FormulaList<LossTerm<Loss>..., LossSlope<Loss>...>;
using LossFormulas = WithLosses<SquaredError, AbsoluteError, SmoothAbsoluteError, BinaryCrossEntropy>;
using Terms = FormulaList<Itself, SquaredDifference>;
using Folds = FormulaList<Total, Largest, Smallest>;

}  // namespace lockstep::ops
