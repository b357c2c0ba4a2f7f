// What weights learned from, as checkpoints store it: what each field means, and the range of a field x that
// a task takes in [-1, 1].
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/data/dataset.h"
#include "train/config.h"

namespace lockstep::train {

/// Provenance: what data.format = auto became.
inline constexpr const char* format_provenance = "data_format";
/// Provenance: the number of training samples (a resume warns of another one), and the tokenizer of text.
inline constexpr const char* samples_provenance = "train_samples";
inline constexpr const char* tokenizer_provenance = "tokenizer";

/// Stored values from low to high are -1 to 1 for the model.
struct StoredRange {
  double low = 0, high = 0;   ///< of the stored values
  data::StoredField field{};  ///< how files store x

  /// As a normalisation of a field of so many channels: value * deviation + mean is the stored value.
  data::Normalization normalization(std::int64_t channels) const;
  /// The stored values of these samples, [N, ...] in [-1, 1]: clamped to the range, and rounded and clamped
  /// to the type if that is one of integers. float64, which holds all that files do.
  std::vector<double> stored_values(std::span<const float> values) const;
};

/// As provenance of a checkpoint.
void add(checkpoint::Provenance& provenance, const StoredRange& range);
/// What add() has written; none if it has not. DataError if it is damaged.
std::optional<StoredRange> stored_range(const checkpoint::Provenance& provenance, const std::string& file);
/// Where no provenance tells, as of weights that another program has trained: uint8, unless data.range says
/// that bytes are not meant; the shape is not known.
StoredRange assumed_range(const DataConfig& config);

/// What the data that weights learned from mean.
struct LearnedFrom {
  std::string name;  ///< of the checkpoint
  /// /data/FIELD, and the tokenizer of its provenance; earlier versions wrote some, or none.
  std::map<std::string, data::FieldMeaning> fields;

  /// By what the field is normalised; null if it is not, or not known.
  const data::Normalization* normalization(const std::string& field) const;
};
/// As a checkpoint has it. DataError if it is damaged.
LearnedFrom learned_from(const checkpoint::FileIndex& index);
/// Lists what each field means under "data/FIELD", to be saved: tensors `mean` and `deviation`, attributes.
void add(checkpoint::StateDict& state_dict, const data::Dataset& data,
         const std::optional<StoredRange>& range);

}  // namespace lockstep::train
