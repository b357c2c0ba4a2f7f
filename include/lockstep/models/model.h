// Model: what training, evaluation and the command line need of a network, a built-in one or one of a
// program.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/autograd/tape.h"
#include "lockstep/base/option.h"
#include "lockstep/nn/module.h"
#include "lockstep/tensor/batch.h"

namespace lockstep::models {

enum class Kind {
  classifier,      ///< one target a sample; reads images
  language_model,  ///< one target a token: the next one; reads text
};

/// What widths and numbers of layers may be. A product of two widths fits in 64 bits.
inline constexpr Range widths = Range::from(1, 2147483647), depths = Range::from(1, 10000);

class Model : public nn::Module {
 public:
  using nn::Module::Module;

  virtual Kind kind() const = 0;
  /// Width of the logits.
  virtual std::int64_t classes() const = 0;
  /// Shape of one sample: a language model's [context], a classifier's input. A model that takes images of
  /// any size names those of `image_size` x `image_size`.
  virtual Shape sample_shape(std::int64_t image_size = 1) const = 0;
  /// Throws DataError naming both shapes (and the key to change) if a field x of this shape does not fit.
  virtual void check_input(const Shape& x) const = 0;
  /// Logits [batch, classes] or [batch, time, classes]. A classifier's field x: float32 images; a language
  /// model's: int64 tokens [batch, time]. Throws as check_input.
  virtual Var forward(Tape& tape, const Batch& batch) = 0;
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
      {.peers = {"gradient_checkpointing", "activation_checkpointing", "checkpointing",
                 "recompute_activations"}});
}

/// "1234 parameters in 12 tensors", and how many of them are frozen, if any.
std::string summary(const ModelState& state);

}  // namespace lockstep::models
