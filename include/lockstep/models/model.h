// Model: the interface of a network for training, evaluation and the command line, built in or of a program.
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

/// The ranges of widths and of numbers of layers. A product of two widths fits in 64 bits.
inline constexpr Range widths = Range::from(1, 2147483647), depths = Range::from(1, 10000);

/// The directions of images (2 dims) or volumes (3), for messages.
constexpr const char* positions_text(std::int64_t dims) {
  return dims == 3 ? "depth, height, width" : "height, width";
}

/// A model that a configuration can name. It maps fields of a batch to one output.
class Model : public nn::Module {
 public:
  using nn::Module::Module;

  /// Properties of a class of models that need no object.
  struct Traits {
    std::string task;                         ///< M::task, the default of task.name; empty: no default
    const ForeignWeights* foreign = nullptr;  ///< M::foreign, which foreign_weights() of every M returns
    /// The traits of M.
    template <class M>
    static Traits of() {
      Traits traits;
      if constexpr (requires { M::task; }) traits.task = M::task;
      if constexpr (requires { M::foreign; }) traits.foreign = &M::foreign;
      return traits;
    }
  };

  /// The model's output for a batch, whose fields it reads by name. Throws DataError naming both shapes (and
  /// the key to change) if a field does not fit.
  virtual Var forward(Tape& tape, const Batch& batch) = 0;
  /// The last layer of a model whose output is x weight', the logits: a loss may compute them itself.
  struct Head {
    Var x;       ///< [..., in]
    Var weight;  ///< [classes, in]
  };
  /// What forward() multiplies last; nothing: it does not end so.
  virtual std::optional<Head> head([[maybe_unused]] Tape& tape, [[maybe_unused]] const Batch& batch) {
    return std::nullopt;
  }
  /// Runs forward(). In an evaluation take_output() returns the result again, so that a task's loss and its
  /// metrics share one pass.
  Var operator()(Tape& tape, const Batch& batch);
  /// The result of the last call of operator() outside of training, once. Throws UsageError if there is no
  /// result.
  Var take_output();

  /// Names of the fields that forward() reads; missing data is then an early error. Empty: unknown.
  virtual std::vector<std::string> reads() const { return {}; }
  /// Width of the logits: the number of classes or tokens. 0: the output is not logits.
  virtual std::int64_t classes() const { return 0; }
  /// Channels of the output images; 0: no images, or unknown.
  virtual std::int64_t out_channels() const { return 0; }
  /// Tokens of a sample of text; 0: the model does not read text.
  virtual std::int64_t context() const { return 0; }
  /// Whether the model takes the positions of tokens from field `positions`, if a batch has it
  /// (autograd/functions.h): then documents can share a row, and a KeyValueCache works.
  virtual bool reads_positions() const { return false; }
  /// Whether x are series [N, T, F], of which field `lengths`, int64 [N], says how many steps exist, if a
  /// batch has it: the others may hold anything. data.normalize then takes each of F alone.
  virtual bool reads_lengths() const { return false; }
  /// The field, int64 [N], that says how many steps of the output and of the targets y [N, T, ...] exist, if
  /// a batch has it: others count in no loss and no metric. Empty: the output has no steps.
  virtual std::string output_lengths() const { return ""; }
  /// The ragged field whose rows the output has, such as the nodes of graphs. Empty: it has a row a sample.
  virtual std::string output_rows() const { return ""; }
  /// Shape of a sample of field x, for measurements with synthetic data. A model for images or volumes of any
  /// size returns one of so many positions in each direction. Empty: unknown.
  virtual Shape sample_shape([[maybe_unused]] std::int64_t image_size = 1) const { return {}; }
  /// Number of classes that field y can select as an input; 0: none.
  virtual std::int64_t input_classes() const { return 0; }
  /// The input of the last linear layer, [N, F]: a classifier's features of a batch. nullopt: it has no such
  /// layer.
  virtual std::optional<Var> features([[maybe_unused]] Tape& tape, [[maybe_unused]] const Batch& batch) {
    return std::nullopt;
  }
  /// Throws DataError naming both shapes (and the key to change) if a field x of this shape does not fit.
  virtual void check_input([[maybe_unused]] const Shape& x) const {}
  /// The same for targets, field y: labels, or numbers.
  virtual void check_target([[maybe_unused]] const Shape& y, [[maybe_unused]] bool labels) const {}

 private:
  std::optional<Var> output_;  // of the last call outside of training
};

/// Checks the options of a model, for its constructor. UsageError naming key and value if one is missing or
/// out of range.
template <class Options>
const Options& checked(const Options& options) {
  option::check(options, "model.");
  return options;
}

/// The option `recompute` of models that consist of blocks.
template <class Options>
Option<Options> recompute_option(bool Options::*field) {
  return option::flag(
      "recompute", field,
      "keep only the inputs of blocks and compute the rest again in the backward: less memory, same bits",
      {.keeps_weights = true,
       .peers = {"gradient_checkpointing", "activation_checkpointing", "checkpointing",
                 "recompute_activations"}});
}

/// The option `dims` of models of images or volumes.
template <class Options>
Option<Options> dims_option(std::int64_t Options::*field) {
  return option::number("dims", field, Range::from(2, 3),
                        "2: images [N, C, H, W]; 3: volumes [N, C, D, H, W]",
                        {.peers = {"spatial_dims", "ndim"}});
}

/// Field `positions` of a batch; absent if the batch lacks it.
inline Tensor positions_in(const Batch& batch) {
  return batch.has("positions") ? batch["positions"] : Tensor();
}

/// "1234 parameters in 12 tensors", and how many of them are frozen, if any.
std::string summary(const ModelState& state);

}  // namespace lockstep::models

namespace lockstep {
using models::Model;
}
