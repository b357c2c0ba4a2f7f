// Private to the module: weights as other programs store them, as a model's ForeignWeights say.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/weights/source.h"
#include "lockstep/checkpoint/convert.h"
#include "lockstep/nn/foreign_weights.h"

namespace lockstep::checkpoint {

/// The keys in the provenance of weights: of the layout that they came in; of what the program that wrote
/// them says of their model (GPT-2 was the first for which one did), which metadata of a file for Python
/// hold, too.
inline constexpr const char *weights_layout_key = "weights_layout", *foreign_config_key = "gpt2_config";

/// JSON: where such a configuration is, the file's own or config.json in its folder, and those of its keys
/// that one of the known models names. Empty if there is none. UsageError if config.json is no JSON object.
std::string foreign_config(const WeightSource& source, KnownForeign known);
/// Compares such a text with the model, whose options have the values option(name). UsageError naming where
/// it is from, the key and both values where they differ. DataError if it is damaged. `weights` is for
/// errors.
void check_foreign_config(const std::string& weights, const std::string& text, const ForeignWeights& by,
                          const std::function<std::string(std::string_view)>& option);

/// What a load has done to stored tensors.
struct Adoption {
  std::vector<std::string> notes;     ///< what was changed, a few words each
  std::vector<std::string> problems;  ///< as in Match
  std::string layout;                 ///< for weights_layout_key; empty unless matrices are stored [in, out]
};
/// Renames tensors of the source's group to requested names, and marks those to transpose or ignore. Leaves
/// tensors that match already.
Adoption adopt(const ForeignWeights& by, const WeightSource& source, std::vector<StoredTensor>& stored,
               std::span<const NamedTensor> requested);

}  // namespace lockstep::checkpoint
