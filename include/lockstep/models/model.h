// Model: what training, evaluation and the command line need of a network, a built-in one or one of a
// program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/autograd/tape.h"
#include "lockstep/base/option.h"
#include "lockstep/nn/foreign_weights.h"
#include "lockstep/nn/module.h"
#include "lockstep/tensor/batch.h"

namespace lockstep::models {

/// What widths and numbers of layers may be. A product of two widths fits in 64 bits.
inline constexpr Range widths = Range::from(1, 2147483647), depths = Range::from(1, 10000);

/// A model that a configuration can name: fields of a batch in, one output.
class Model : public nn::Module {
 public:
  using nn::Module::Module;

  /// What is known of a class of models before one is made.
  struct Traits {
    std::string task;  ///< M::task: that of a configuration which names none; empty: it must name one
    const ForeignWeights* foreign = nullptr;  ///< M::foreign: what foreign_weights() gives, for any M
    /// Those of M.
    template <class M>
    static Traits of() {
      Traits traits;
      if constexpr (requires { M::task; }) traits.task = M::task;
      if constexpr (requires { M::foreign; }) traits.foreign = &M::foreign;
      return traits;
    }
  };

  /// What the model makes of a batch, whose fields it takes by name. Throws DataError naming both shapes (and
  /// the key to change) if a field does not fit.
  virtual Var forward(Tape& tape, const Batch& batch) = 0;
  /// forward(), whose result take_output() gives again in an evaluation: a task's loss and its metrics share
  /// one pass.
  Var operator()(Tape& tape, const Batch& batch);
  /// What the last call of operator() gave outside of training, once. Throws UsageError if there
  /// was none.
  Var take_output();

  /// Fields that forward() takes from a batch, for an early error if the data has them not; empty: not known.
  virtual std::vector<std::string> reads() const { return {}; }
  /// Width of the logits: of classes or tokens. 0: the output is not logits.
  virtual std::int64_t classes() const { return 0; }
  /// Channels of the images that it makes; 0: it makes none, or is not known.
  virtual std::int64_t out_channels() const { return 0; }
  /// Tokens of a sample of text; 0: the model does not read text.
  virtual std::int64_t context() const { return 0; }
  /// Shape of a sample of field x, for measurements with made-up data. A model that takes images of any size
  /// names those of `image_size` x `image_size`. Empty: not known.
  virtual Shape sample_shape([[maybe_unused]] std::int64_t image_size = 1) const { return {}; }
  /// Classes that a sample can be asked to be of, by field y as an input; 0: none.
  virtual std::int64_t input_classes() const { return 0; }
  /// What the last linear layer takes, [N, F]: a classifier's features of a batch. None: it has no such
  /// layer.
  virtual std::optional<Var> features([[maybe_unused]] Tape& tape, [[maybe_unused]] const Batch& batch) {
    return std::nullopt;
  }
  /// Throws DataError naming both shapes (and the key to change) if a field x of this shape does not fit.
  virtual void check_input([[maybe_unused]] const Shape& x) const {}

 private:
  std::optional<Var> output_;  // of the last call outside of training
};

/// The options of a model, for its constructor. UsageError naming key and value if one is missing or beyond
/// what its description allows.
template <class Options>
const Options& checked(const Options& options) {
  option::check(options, "model.");
  return options;
}

/// The option `recompute` of models that are made of blocks.
template <class Options>
Option<Options> recompute_option(bool Options::*field) {
  return option::flag(
      "recompute", field,
      "keep only the inputs of blocks and compute the rest again in the backward: less memory, same bits",
      {.keeps_weights = true,
       .peers = {"gradient_checkpointing", "activation_checkpointing", "checkpointing",
                 "recompute_activations"}});
}

/// "1234 parameters in 12 tensors", and how many of them are frozen, if any.
std::string summary(const ModelState& state);

}  // namespace lockstep::models

namespace lockstep {
using models::Model;
}
