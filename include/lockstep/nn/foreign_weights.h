// ForeignWeights: how files of other programs store the weights of a model.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

/// How another program stores the weights of a model, where that differs from the model's own names and
/// shapes, and how it describes the model. A load renames, transposes and compares by it; a conversion does
/// the inverse. nn::Module::foreign_weights() returns it.
struct ForeignWeights {
  /// A tensor that a file may have although it follows from the model.
  struct Mask {
    std::string_view name;  ///< within a block: "attn.bias"
    std::string_view word;  ///< its word in weights_layout: "mask"
    float value = 1;  ///< a number; with `triangle` [1, 1, positions, positions]: on and below the diagonal
    bool triangle = false;  ///< values above the diagonal are 0
  };
  /// A key of the other program's configuration.
  struct Key {
    std::vector<std::string_view> names;  ///< its possible names
    std::vector<std::string_view> values =
        {};                        ///< JSON: values with which it computes the same as this model
    std::string_view option = "";  ///< of this model: its value * `times` is the other's value
    /// Words of the option, one for each of `values`: with it, this model computes what the value means.
    std::vector<std::string_view> words = {};
    int times = 1;                  ///< see option
    std::string_view ours = "";     ///< this model's side, for errors; empty: the option's value
    std::string_view missing = "";  ///< JSON: the default, if the configuration names its model
    bool names_model = false;       ///< names its model; the first such key counts
  };
  /// A part of names in files of earlier versions of the other program.
  struct OldName {
    std::string_view old, current;  ///< ".mlp.linear_1." and ".mlp.0."
  };
  /// The text of a model's option, by name.
  using OptionText = std::function<std::string(std::string_view)>;
  /// A tensor that only a larger relative of the model has, and the error about it that replaces all other
  /// differences.
  struct Relative {
    std::string_view tensor;  ///< its name
    std::string_view text;    ///< what it is, for the error
  };

  std::string_view layout = "";   ///< its name, for --layout; empty: names and shapes are this model's
  std::string_view model = "";    ///< the model's name in errors: "gpt"
  std::string_view program = "";  ///< the other program's name in errors: "Hugging Face's GPT-2"
  std::string_view prefix = "";   ///< prefix of this model's names that files may leave out: "transformer."
  std::string_view blocks = "";   ///< "transformer.h.", before the number of a block and a dot
  std::string_view marker = "";   ///< within a block: a tensor that only such models have
  /// Within a block: matrices that files may have as [in, out]. If they do, the first one has the shape [n,
  /// factor n].
  std::vector<std::string_view> in_first = {};
  int factor = 1;                   ///< see in_first
  std::vector<Mask> masks = {};     ///< of each block
  std::string_view positions = "";  ///< a tensor [positions, ...] of this model
  /// Two names of one tensor, of which a file has one or both.
  std::string_view head = "", embedding = "";
  std::vector<Key> config = {};  ///< keys to compare
  /// Where keys do not suffice: the model's options that the other program's configuration, a JSON object,
  /// means. UsageError for what this model lacks.
  std::map<std::string, std::string> (*options_of)(std::string_view config) = nullptr;
  /// The other program's configuration of this model, a JSON object. UsageError if it has no such model.
  std::string (*config_of)(const OptionText& option) = nullptr;
  std::vector<OldName> old_names = {};   ///< to replace
  std::vector<Relative> relatives = {};  ///< larger models, for errors
};

}  // namespace lockstep
