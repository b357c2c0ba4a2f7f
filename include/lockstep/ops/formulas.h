// Formulas of elements: value and slope, written once for CPU and GPU. Each formula in the list Formulas is
// an operation on both devices (Map in elementwise.h). To add one, write a struct and add its name to the
// list.
//
// A formula is computed in float32, element by element, and has only branches that loops can vectorise. With
// `broadcasts = false` the inputs must have the result's shape and type, and no kernels for others are
// compiled.
#pragma once

#include <limits>

#include "lockstep/ops/math.h"
#include "lockstep/ops/operation.h"

namespace lockstep::ops {

/// a + b.
struct Sum {
  static constexpr const char* name = "add";
  static constexpr int inputs = 2;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float a, float b) const { return a + b; }
};

/// factor x.
struct Scaled {
  static constexpr const char* name = "scale";
  static constexpr int inputs = 1;
  float factor = 1;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float x) const { return factor * x; }
};

/// factor x + offset.
struct Shifted {
  static constexpr const char* name = "add_scalar";
  static constexpr int inputs = 1;
  static constexpr bool broadcasts = false;
  float factor = 1, offset = 0;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float x) const { return multiply_add(factor, x, offset); }
};

/// a - b.
struct Difference {
  static constexpr const char* name = "sub";
  static constexpr int inputs = 2;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float a, float b) const { return a - b; }
};

/// a b.
struct Product {
  static constexpr const char* name = "mul";
  static constexpr int inputs = 2;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float a, float b) const { return a * b; }
};

/// a / b.
struct Quotient {
  static constexpr const char* name = "div";
  static constexpr int inputs = 2;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float a, float b) const { return a / b; }
};

/// The gradient of y = a / b with respect to b.
struct DivisorSlope {
  static constexpr const char* name = "div_backward";
  static constexpr int inputs = 3;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float dy, float y, float b) const { return -(dy * y) / b; }
};

/// The larger one; NaN stays.
struct Maximum {
  static constexpr const char* name = "maximum";
  static constexpr int inputs = 2;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float a, float b) const { return b > a || b != b ? b : a; }
};

/// The smaller one; NaN stays.
struct Minimum {
  static constexpr const char* name = "minimum";
  static constexpr int inputs = 2;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float a, float b) const { return b < a || b != b ? b : a; }
};

/// dy where a is the larger one, half of it where both are equal; both inputs get dy where the result is NaN.
struct LargerSlope {
  static constexpr const char* name = "maximum_backward";
  static constexpr int inputs = 3;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float dy, float a, float b) const {
    return b > a ? 0.0f : (a == b ? 0.5f * dy : dy);
  }
};

/// a where the condition is not 0, else b.
struct Where {
  static constexpr const char* name = "where";
  static constexpr int inputs = 3;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float condition, float a, float b) const {
    return condition != 0.0f ? a : b;
  }
};

// Functions of one input, with their slopes: slope(x), or slope(value(x)) with slope_by_value. Attributes are
// data members, which value() and slope() read.

/// max(0, x).
struct Relu {
  static constexpr const char *name = "relu", *slope_name = "relu_backward";
  static constexpr bool slope_by_value = true;
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return x < 0.0f ? 0.0f : x; }  // NaN stays
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) { return x > 0.0f ? 1.0f : 0.0f; }
};

/// x sigmoid(x).
struct Silu {
  static constexpr const char *name = "silu", *slope_name = "silu_backward";
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return x * logistic(x).value; }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) {
    const Logistic at = logistic(x);
    return at.value + (at.slope == 0.0f ? 0.0f : x * at.slope);  // never infinity * 0
  }
};

/// silu(gate) up (Shazeer, "GLU variants improve transformer", 2020).
struct SwiGlu {
  static constexpr const char* name = "swiglu";
  static constexpr int inputs = 2;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float gate, float up) const { return Silu::value(gate) * up; }
};

/// The gradient of silu(gate) up with respect to the gate.
struct SwiGluSlope {
  static constexpr const char* name = "swiglu_backward";
  static constexpr int inputs = 3;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float dy, float gate, float up) const {
    return dy * up * Silu::slope(gate);
  }
};

// GELU: Hendrycks, Gimpel, "Gaussian error linear units", 2016.
/// x Phi(x), by the error function.
struct GeluErf {
  static constexpr const char *name = "gelu_erf", *slope_name = "gelu_erf_backward";
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return x * normal(x).cdf; }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) {
    const Normal at = normal(x);
    return multiply_add(at.density == 0.0f ? 0.0f : x, at.density, at.cdf);  // never infinity * 0
  }
};

/// 0.5 x (1 + tanh u), computed as x sigmoid(2 u): one exponential, and no cancellation in the lower tail.
struct GeluTanh {
  static constexpr const char *name = "gelu_tanh", *slope_name = "gelu_tanh_backward";
  /// The coefficients of 2 u.
  static constexpr float linear = 1.59576912f;  // 2 sqrt(2 / pi)
  static constexpr float cubic = 0.044715f * linear;
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) {
    return x * logistic(x * multiply_add(cubic, x * x, linear)).value;
  }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) {
    const float square = x * x;
    const Logistic at = logistic(x * multiply_add(cubic, square, linear));
    const float inner = x * multiply_add(3.0f * cubic, square, linear);  // x times the slope of the argument
    return at.value + (at.slope == 0.0f ? 0.0f : at.slope * inner);      // inner overflows for large |x|
  }
};

/// tanh(x).
struct Tanh {
  static constexpr const char *name = "tanh", *slope_name = "tanh_backward";
  static constexpr bool slope_by_value = true;
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return hyperbolic_tangent(x); }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float y) { return multiply_add(-y, y, 1.0f); }
};

/// 1 / (1 + e^-x).
struct Sigmoid {
  static constexpr const char *name = "sigmoid", *slope_name = "sigmoid_backward";
  static constexpr bool slope_by_value = true;
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return sigmoid(x); }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float y) { return y * (1.0f - y); }
};

/// e^x.
struct Exp {
  static constexpr const char *name = "exp", *slope_name = "exp_backward";
  static constexpr bool slope_by_value = true;
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return exponential(x); }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float y) { return y; }
};

/// The natural logarithm.
struct Log {
  static constexpr const char *name = "log", *slope_name = "log_backward";
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return logarithm(x); }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) { return 1.0f / x; }
};

/// The square root.
struct Sqrt {
  static constexpr const char *name = "sqrt", *slope_name = "sqrt_backward";
  static constexpr bool slope_by_value = true;
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return square_root(x); }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float y) { return 0.5f / y; }
};

/// 1 / sqrt(x).
struct Rsqrt {
  static constexpr const char *name = "rsqrt", *slope_name = "rsqrt_backward";
  static constexpr bool slope_by_value = true;
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return 1.0f / square_root(x); }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float y) { return -0.5f * (y * y * y); }
};

/// numerator / x
struct Reciprocal {
  static constexpr const char *name = "reciprocal", *slope_name = "reciprocal_backward";
  float numerator = 1;
  LOCKSTEP_ON_ANY_DEVICE float value(float x) const { return numerator / x; }
  LOCKSTEP_ON_ANY_DEVICE float slope(float x) const { return -(numerator / x) / x; }
};

/// |x|; the slope at 0 is 0.
struct Abs {
  static constexpr const char *name = "abs", *slope_name = "abs_backward";
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return absolute(x); }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) { return x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : 0.0f); }
};

/// x^2.
struct Square {
  static constexpr const char *name = "square", *slope_name = "square_backward";
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return x * x; }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) { return 2.0f * x; }
};

/// sin(x).
struct Sin {
  static constexpr const char *name = "sin", *slope_name = "sin_backward";
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return sine(x); }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) { return cosine(x); }
};

/// cos(x).
struct Cos {
  static constexpr const char *name = "cos", *slope_name = "cos_backward";
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return cosine(x); }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) { return -sine(x); }
};

/// The error function.
struct Erf {
  static constexpr const char *name = "erf", *slope_name = "erf_backward";
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return error_function(x); }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) { return 1.12837917f * exponential(-x * x); }
};

/// log(1 + e^x)
struct Softplus {
  static constexpr const char *name = "softplus", *slope_name = "softplus_backward";
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) {
    return (x < 0.0f ? 0.0f : x) + logarithm_one_plus(exponential(-absolute(x)));
  }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) { return sigmoid(x); }
};

/// log(sigmoid(x)).
struct LogSigmoid {
  static constexpr const char *name = "log_sigmoid", *slope_name = "log_sigmoid_backward";
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) { return -Softplus::value(-x); }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) { return sigmoid(-x); }
};

/// x below 0 becomes alpha (e^x - 1).
struct Elu {
  static constexpr const char *name = "elu", *slope_name = "elu_backward";
  float alpha = 1;
  LOCKSTEP_ON_ANY_DEVICE float value(float x) const { return x < 0.0f ? alpha * exponential_less_one(x) : x; }
  LOCKSTEP_ON_ANY_DEVICE float slope(float x) const { return x < 0.0f ? alpha * exponential(x) : 1.0f; }
};

/// x below 0 becomes negative_slope x.
struct LeakyRelu {
  static constexpr const char *name = "leaky_relu", *slope_name = "leaky_relu_backward";
  float negative_slope = 0.01f;
  LOCKSTEP_ON_ANY_DEVICE float value(float x) const { return x < 0.0f ? negative_slope * x : x; }
  LOCKSTEP_ON_ANY_DEVICE float slope(float x) const { return x > 0.0f ? 1.0f : negative_slope; }
};

/// x tanh(softplus(x)): Misra, "Mish", 2019. With e = e^-|x|, t = tanh(softplus(x)) and 1 - t are quotients
/// in which nothing cancels.
struct Mish {
  static constexpr const char *name = "mish", *slope_name = "mish_backward";
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) {
    const float e = exponential(-absolute(x)), twice = 2.0f * e, square = e * e;
    const float t = x < 0.0f ? (square + twice) / (square + twice + 2.0f)
                             : (1.0f + twice) / (1.0f + twice + 2.0f * square);
    return x * t;
  }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) {
    const float e = exponential(-absolute(x)), twice = 2.0f * e, square = e * e;
    const float above = x < 0.0f ? square + twice : 1.0f + twice, rest = x < 0.0f ? 2.0f : 2.0f * square;
    const float t = above / (above + rest);
    const float inner = rest / (above + rest) * (1.0f + t) * sigmoid(x);  // the slope of t
    return t + (inner == 0.0f ? 0.0f : x * inner);                        // never infinity * 0
  }
};

/// x clamp(x + 3, 0, 6) / 6
struct Hardswish {
  static constexpr const char *name = "hardswish", *slope_name = "hardswish_backward";
  LOCKSTEP_ON_ANY_DEVICE static float value(float x) {
    const float within = x * (x + 3.0f) * (1.0f / 6.0f);
    return x < -3.0f ? 0.0f : (x > 3.0f ? x : within);
  }
  LOCKSTEP_ON_ANY_DEVICE static float slope(float x) {
    const float within = multiply_add(x, 1.0f / 3.0f, 0.5f);
    return x < -3.0f ? 0.0f : (x > 3.0f ? 1.0f : within);
  }
};

/// x^exponent; NaN for negative x unless the exponent is whole.
struct Pow {
  static constexpr const char *name = "pow", *slope_name = "pow_backward";
  float exponent = 1;
  LOCKSTEP_ON_ANY_DEVICE float value(float x) const { return power(x, exponent); }
  LOCKSTEP_ON_ANY_DEVICE float slope(float x) const {
    const float slope = exponent * power(x, exponent - 1.0f);
    return exponent == 0.0f ? 0.0f : slope;
  }
};

/// min(max(x, low), high).
struct Clamp {
  static constexpr const char *name = "clamp", *slope_name = "clamp_backward";
  float low = 0, high = 1;
  LOCKSTEP_ON_ANY_DEVICE float value(float x) const {
    const float raised = x < low ? low : x;  // NaN stays
    return raised > high ? high : raised;
  }
  LOCKSTEP_ON_ANY_DEVICE float slope(float x) const { return x >= low && x <= high ? 1.0f : 0.0f; }
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

/// x itself.
struct Itself {
  static constexpr const char* name = "total";
  static constexpr int inputs = 1;
  template <class T>
  LOCKSTEP_ON_ANY_DEVICE T operator()(T x) const {
    return x;
  }
};

/// (a - b)^2.
struct SquaredDifference {
  static constexpr const char* name = "squared_error";
  static constexpr int inputs = 2;
  template <class T>
  LOCKSTEP_ON_ANY_DEVICE T operator()(T a, T b) const {
    const T off = a - b;
    return off * off;
  }
};

// Folds (ReduceAxes in reduction.h) begin with `start` and add each element by join(a, b); Joined::join()
// joins two folds. T is float or double. A fold with term(x, other) joins the terms in place of the elements;
// by_element: `other` has x's shape instead of the result's.

/// The sum.
struct Total {
  static constexpr const char* name = "sum";
  static constexpr float start = 0;
  using Joined = Total;  ///< joins two partial folds
  template <class T>
  LOCKSTEP_ON_ANY_DEVICE static T join(T a, T b) {
    return a + b;
  }
};

/// The largest; NaN stays.
struct Largest {
  static constexpr const char* name = "amax";
  static constexpr float start = -std::numeric_limits<float>::infinity();
  using Joined = Largest;  ///< joins two partial folds
  template <class T>
  LOCKSTEP_ON_ANY_DEVICE static T join(T a, T b) {
    return ((b > a) | (b != b)) ? b : a;
  }
};

/// The smallest; NaN stays.
struct Smallest {
  static constexpr const char* name = "amin";
  static constexpr float start = std::numeric_limits<float>::infinity();
  using Joined = Smallest;  ///< joins two partial folds
  template <class T>
  LOCKSTEP_ON_ANY_DEVICE static T join(T a, T b) {
    return ((b < a) | (b != b)) ? b : a;
  }
};

/// The sum of a b.
struct SumOfProducts : Total {
  static constexpr const char* name = "sum_of_products";
  static constexpr bool by_element = true;
  LOCKSTEP_ON_ANY_DEVICE static float term(float a, float b) { return a * b; }
};

/// The sum of x^2.
struct SumOfSquares : Total {
  static constexpr const char* name = "sum_of_squares";
  static constexpr bool by_element = false;
  LOCKSTEP_ON_ANY_DEVICE static float term(float x, float about) { return (x - about) * (x - about); }
};

/// How often a equals b.
struct CountOfEqual : Total {
  static constexpr const char* name = "count_of_equal";
  static constexpr bool by_element = false;
  LOCKSTEP_ON_ANY_DEVICE static float term(float x, float to) { return x == to ? 1.0f : 0.0f; }
};

/// Subtracted from exponents so that no exponential overflows: max, or 0 if that is infinite or NaN.
LOCKSTEP_ON_ANY_DEVICE inline float shift_by(float max) {
  return absolute(max) < std::numeric_limits<float>::infinity() ? max : 0.0f;
}

/// The sum of e^(x - max).
struct SumOfExponentials : Total {
  static constexpr const char* name = "sum_of_exponentials";
  static constexpr bool by_element = false;
  LOCKSTEP_ON_ANY_DEVICE static float term(float x, float max) { return exponential(x - shift_by(max)); }
};

// Softmax and related functions. max: the largest element; sum: the SumOfExponentials with this max.

/// log(sum of e^x) along an axis.
struct LogSumExp {
  static constexpr const char* name = "logsumexp";
  static constexpr int inputs = 2;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float max, float sum) const {
    return shift_by(max) + logarithm(sum);
  }
};

/// The gradient of LogSumExp.
struct LogSumExpSlope {
  static constexpr const char* name = "logsumexp_backward";
  static constexpr int inputs = 4;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float x, float max, float sum, float dy) const {
    const float slope = dy * (exponential(x - shift_by(max)) / sum);
    return sum == 0.0f ? 0.0f : slope;  // where all x are -infinity
  }
};

/// Softmax along an axis.
struct Softmax {
  static constexpr const char* name = "softmax";
  static constexpr int inputs = 3;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float x, float max, float sum) const {
    return exponential(x - shift_by(max)) / sum;
  }
};

/// along: the sum of y dy.
struct SoftmaxSlope {
  static constexpr const char* name = "softmax_backward";
  static constexpr int inputs = 3;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float y, float dy, float along) const { return y * (dy - along); }
};

/// The logarithm of a softmax along an axis.
struct LogSoftmax {
  static constexpr const char* name = "log_softmax";
  static constexpr int inputs = 3;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float x, float max, float sum) const {
    return x - shift_by(max) - logarithm(sum);
  }
};

/// along: the sum of dy.
struct LogSoftmaxSlope {
  static constexpr const char* name = "log_softmax_backward";
  static constexpr int inputs = 3;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float y, float dy, float along) const {
    return dy - exponential(y) * along;
  }
};

/// factor: 2 / the number of elements.
struct VarianceSlope {
  static constexpr const char* name = "variance_backward";
  static constexpr int inputs = 3;
  float factor = 1;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float x, float mean, float dy) const {
    return factor * dy * (x - mean);
  }
};

/// y: the extreme; count: the number of elements equal to it. NaN where y is NaN.
struct ExtremeSlope {
  static constexpr const char* name = "extreme_backward";
  static constexpr int inputs = 4;
  LOCKSTEP_ON_ANY_DEVICE float operator()(float x, float y, float dy, float count) const {
    const float slope = x == y ? dy / count : 0.0f;
    return y != y ? y : slope;
  }
};

// Losses of an element and its target, with their derivatives by the element. Term: the loss for a sum in one
// pass.

/// (x - target)^2.
struct SquaredError {
  static constexpr const char *name = "squared_error_terms", *slope_name = "squared_error_backward";
  using Term = SquaredDifference;  ///< what is summed
  LOCKSTEP_ON_ANY_DEVICE float value(float x, float target) const { return (x - target) * (x - target); }
  LOCKSTEP_ON_ANY_DEVICE float slope(float x, float target) const { return 2.0f * (x - target); }
};

/// |x - target|.
struct AbsoluteError {
  static constexpr const char *name = "absolute_error_terms", *slope_name = "absolute_error_backward";
  LOCKSTEP_ON_ANY_DEVICE float value(float x, float target) const { return absolute(x - target); }
  LOCKSTEP_ON_ANY_DEVICE float slope(float x, float target) const {
    return x > target ? 1.0f : x < target ? -1.0f : x - target;  // 0 or NaN
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

/// All formulas, which every device implements.
template <class... Function>
using WithFunctions =
    TypeList<Sum, Scaled, Shifted, Difference, Product, Quotient, DivisorSlope, Maximum, Minimum, LargerSlope,
             Where, LogSumExp, LogSumExpSlope, Softmax, SoftmaxSlope, LogSoftmax, LogSoftmaxSlope,
             VarianceSlope, ExtremeSlope, SwiGlu, SwiGluSlope, Value<Function>..., Slope<Function>...>;
using Formulas =
    WithFunctions<Relu, Silu, GeluErf, GeluTanh, Tanh, Sigmoid, Exp, Log, Sqrt, Rsqrt, Reciprocal, Abs,
                  Square, Sin, Cos, Erf, Softplus, LogSigmoid, Elu, LeakyRelu, Mish, Hardswish, Pow, Clamp>;
template <class... Loss>
using WithLosses = TypeList<LossTerm<Loss>..., LossSlope<Loss>...>;
using LossFormulas = WithLosses<SquaredError, AbsoluteError, SmoothAbsoluteError, BinaryCrossEntropy>;
using Terms = TypeList<Itself, SquaredDifference>;
using Folds =
    TypeList<Total, Largest, Smallest, SumOfProducts, SumOfSquares, CountOfEqual, SumOfExponentials>;

}  // namespace lockstep::ops
