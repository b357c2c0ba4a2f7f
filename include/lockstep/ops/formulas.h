// Formulas of elements: value and slope, written once for CPU and GPU. What is named here is an operation on
// both devices (Map in elementwise.h): add a struct, and its name to Formulas.
//
// A formula is computed in float32, element by element, and has no branch that loops could not vectorise.
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
  float factor = 1;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float x) const { return factor * x; }
};

struct SquaredErrorSlope {
  static constexpr const char* name = "squared_error_backward";
  static constexpr int inputs = 3;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float x, float target, float factor) const {
    return 2.0f * factor * (x - target);
  }
};

// Functions of one input, with their slopes: slope(x), which is slope(value(x)) where slope_by_value is said.

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

/// y = f(x)
template <class Function>
struct Value {
  static constexpr const char* name = Function::name;
  static constexpr int inputs = 1;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float x) const { return Function::value(x); }
};

/// dx = dy f'(x)
template <class Function>
struct Slope {
  static constexpr const char* name = Function::slope_name;
  static constexpr int inputs = 2;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float x, float dy) const { return dy * Function::slope(x); }
};

/// A term of a sum (Reduce in elementwise.h), in float64: T is a double, or a vector of them.
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

template <class... Formula>
struct FormulaList {};

/// All that devices carry out.
template <class... Function>
using WithFunctions = FormulaList<Sum, Scaled, SquaredErrorSlope, Value<Function>..., Slope<Function>...>;
using Formulas = WithFunctions<Relu, Silu, GeluErf, GeluTanh>;
using Terms = FormulaList<SquaredDifference>;
using Folds = FormulaList<Total, Largest, Smallest>;

}  // namespace lockstep::ops
