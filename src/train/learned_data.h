// The data that weights learned from, in checkpoints: the meaning of each field, and the range of a field x
// that a task needs in [-1, 1].
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
#include "lockstep/data/tokenizer.h"
#include "train/config.h"

namespace lockstep::train {

/// Provenance: the resolved data.format.
inline constexpr const char* format_provenance = "data_format";
/// Provenance: the number of training samples (a resume warns if it differs); the id of the tokenizer of
/// text, and its definition.
inline constexpr const char* samples_provenance = "train_samples";
inline constexpr const char* tokenizer_provenance = "tokenizer";
inline constexpr const char* tokenizer_text_provenance = "tokenizer_text";

/// The tokenizer that provenance names; its name is empty if there is none.
data::StoredTokenizer stored_tokenizer(const checkpoint::Provenance& provenance);

/// Stored values from low to high are -1 to 1 for the model.
struct StoredRange {
  double low = 0, high = 0;   ///< of the stored values
  data::StoredField field{};  ///< how files store x

  /// The normalisation of a field of `channels` channels: value * deviation + mean is the stored value.
  data::Normalization normalization(std::int64_t channels) const;
  /// The stored values of these samples, [N, ...] in [-1, 1]: clamped to the range, and rounded and clamped
  /// to the type if that is one of integers. float64, which holds all stored types.
  std::vector<double> stored_values(std::span<const float> values) const;
};

/// As provenance of a checkpoint.
void add(checkpoint::Provenance& provenance, const StoredRange& range);
/// The range that add() wrote; none if there is none. DataError if it is damaged.
std::optional<StoredRange> stored_range(const checkpoint::Provenance& provenance, const std::string& file);
/// The range without provenance, for weights of another program: uint8, unless data.range excludes bytes; the
/// shape is unknown.
StoredRange assumed_range(const DataConfig& config);

/// The meaning of the data that weights learned from.
struct LearnedFrom {
  std::string name;  ///< of the checkpoint
  /// /data/FIELD, and the tokenizer of its provenance; earlier versions wrote some, or none.
  std::map<std::string, data::FieldMeaning> fields;

  /// The normalisation of the field; null: none, or unknown.
  const data::Normalization* normalization(const std::string& field) const;
};
/// From a checkpoint. DataError if it is damaged.
LearnedFrom learned_from(const checkpoint::FileIndex& index);
/// Lists the meaning of each field under "data/FIELD" for a save: tensors `mean` and `deviation`, attributes.
void add(checkpoint::StateDict& state_dict, const data::Dataset& data,
         const std::optional<StoredRange>& range);

}  // namespace lockstep::train
