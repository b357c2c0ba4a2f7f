// Private to the module: weights in the layouts of other programs, according to a model's ForeignWeights.
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

/// Keys in the provenance of weights: their original layout; the original program's description of their
/// model (at first only of GPT-2), which is also in metadata of files for Python.
inline constexpr const char *weights_layout_key = "weights_layout", *foreign_config_key = "gpt2_config";

/// The number of updates of an average from PyTorch's AveragedModel.
inline constexpr const char* n_averaged_key = "n_averaged";

/// JSON: the place of such a configuration (the file's own, or config.json in its folder), and those of its
/// keys that one of the known models names, or the options that it means (ForeignWeights::options_of). Empty
/// if there is none. UsageError if config.json is not a JSON object, or, if the model is known, of another
/// one.
std::string foreign_config(const WeightSource& source, KnownForeign known);
/// The model's options that config.json in a folder means, as texts; none if there is none. UsageError naming
/// it.
std::map<std::string, std::string> foreign_options(const std::string& folder, const ForeignWeights& by);
/// Compares such a text with the model, whose options have the values option(name). UsageError naming its
/// place, the key and both values if they differ. DataError if it is damaged. `weights` is for errors.
void check_foreign_config(const std::string& weights, const std::string& text, const ForeignWeights& by,
                          const std::function<std::string(std::string_view)>& option);

/// Changes of a load to stored tensors.
struct Adoption {
  std::vector<std::string> notes;     ///< the changes, a few words each
  std::vector<std::string> problems;  ///< as in Match
  std::string layout;                 ///< for weights_layout_key; empty unless matrices are stored [in, out]
};
/// Renames tensors of the source's group to requested names, and marks those to transpose or ignore. Does not
/// change tensors that match already.
Adoption adopt(const ForeignWeights& by, const WeightSource& source, std::vector<StoredTensor>& stored,
               std::span<const NamedTensor> requested);

}  // namespace lockstep::checkpoint
