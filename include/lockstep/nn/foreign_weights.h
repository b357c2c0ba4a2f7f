// ForeignWeights: what a model tells of its weights in files of other programs.
#pragma once

#include <string_view>
#include <vector>

namespace lockstep {

/// How another program stores the weights of a model, as far as that differs from the model's own names and
/// shapes, and what it says of the model. A load renames, transposes and compares by it, and a conversion
/// goes the other way. nn::Module::foreign_weights() gives it.
struct ForeignWeights {
  /// A tensor that a file may have although it follows from the model.
  struct Mask {
    std::string_view name;  ///< within a block: "attn.bias"
    std::string_view word;  ///< of it in weights_layout: "mask"
    float value = 1;  ///< a number; with `triangle` [1, 1, positions, positions]: on and below the diagonal
    bool triangle = false;  ///< values above the diagonal are 0
  };
  /// Of a configuration of the other program.
  struct Key {
    std::vector<std::string_view> names;        ///< that it may have
    std::vector<std::string_view> values = {};  ///< JSON: those with which it computes what this model does
    std::string_view option = "";               ///< of this model, whose value `times` is the other one
    int times = 1;                              ///< see option
    std::string_view ours = "";                 ///< this model's side, for errors; empty: the option's value
    std::string_view missing = "";  ///< JSON: what no such key means, if the configuration names its model
    bool names_model = false;       ///< of several that do, the first one counts
  };
  /// A tensor that only a larger relative of the model has, and what to say of it in place of all that
  /// differs.
  struct Relative {
    std::string_view tensor;  ///< its name
    std::string_view text;    ///< what it is, for the error
  };

  std::string_view layout = "";   ///< its name, for --layout; empty: names and shapes are this model's
  std::string_view model = "";    ///< what errors call this model: "gpt"
  std::string_view program = "";  ///< what they call the other: "Hugging Face's GPT-2"
  std::string_view prefix = "";   ///< of all names of this model, which files may leave out: "transformer."
  std::string_view blocks = "";   ///< "transformer.h.", before the number of a block and a dot
  /// Within a block: matrices that files have as [in, out]. The shape of the first one, [n, factor n] there,
  /// tells whether they do.
  std::vector<std::string_view> in_first = {};
  int factor = 1;                   ///< see in_first
  std::vector<Mask> masks = {};     ///< of each block
  std::string_view positions = "";  ///< a tensor [positions, ...] of this model
  /// Names of one tensor, of which a file has one or both: in files; this model's.
  std::string_view head = "", embedding = "";
  std::vector<Key> config = {};          ///< keys that are compared
  std::vector<Relative> relatives = {};  ///< larger models, for errors
};

}  // namespace lockstep
