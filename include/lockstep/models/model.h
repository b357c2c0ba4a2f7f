// Model: what a trainer needs of any network.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/autograd/tape.h"
#include "lockstep/nn/module.h"

namespace lockstep::models {

enum class Kind {
  classifier,      ///< one target a sample
  language_model,  ///< one target a token: the next one
};

class Model : public nn::Module {
 public:
  using nn::Module::Module;

  virtual Kind kind() const = 0;
  /// Width of the logits.
  virtual std::int64_t classes() const = 0;
  /// Throws DataError naming both shapes (and the key to change) if a batch of this shape does not fit.
  virtual void check_input(const Shape& x) const = 0;
  /// Logits [batch, classes] or [batch, time, classes]. A classifier's x: float32 images; a language model's:
  /// int64 tokens [batch, time]. Throws as check_input.
  virtual Var forward(Tape& tape, const Tensor& x) = 0;
};

/// "1234 parameters in 12 tensors", and how many of them are frozen, if any.
std::string summary(const ModelState& state);

}  // namespace lockstep::models
