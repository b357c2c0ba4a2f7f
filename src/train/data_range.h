// data.range: field x of a task that takes it in [-1, 1], and how its files store it.
#pragma once

#include <optional>
#include <span>

#include "lockstep/checkpoint/store.h"
#include "lockstep/data/arrays.h"
#include "lockstep/data/dataset.h"
#include "lockstep/models/model.h"
#include "train/config.h"

namespace lockstep::train {

/// Stored values from low to high are -1 to 1 for the model.
struct StoredRange {
  double low = 0, high = 0;   ///< of the stored values
  data::StoredField field{};  ///< how files store x

  /// value * deviation + mean is the stored value.
  double mean() const { return low + (high - low) / 2; }
  double deviation() const { return (high - low) / 2; }

  /// The stored values of these samples, [N, ...] in [-1, 1]: clamped to the range, and rounded and clamped
  /// to the type if that is one of integers. float64, which holds all that files do.
  std::vector<double> stored_values(std::span<const float> values) const;
};

/// Lets the data, images or arrays, give field x in [-1, 1]: by data.range, or by default 0 to 255 of uint8
/// and -1 to 1 of floats. None if the data has no field x, or is of a program, which maps itself. UsageError
/// if x has another type, or floats whose first samples leave [-1, 1], and data.range is not given, if
/// data.normalize names x, or if the data cannot be mapped.
std::optional<StoredRange> map_to_unit_range(const DataConfig& config, data::Dataset& dataset);
/// UsageError if data.range is given, and the task or the data do not take it.
void check_no_range(const Config& config, std::string_view why);
/// Whether the configured task takes x in [-1, 1].
bool takes_unit_range(const Config& config);

/// As provenance of a checkpoint.
void add(checkpoint::Provenance& provenance, const StoredRange& range);
/// What add() has written; none if it has not. DataError if it is damaged.
std::optional<StoredRange> stored_range(const checkpoint::Provenance& provenance, const std::string& file);
/// Where no provenance tells, as of weights that another program has trained: uint8, unless data.range says
/// that bytes are not meant; the shape is not known.
StoredRange assumed_range(const DataConfig& config);

}  // namespace lockstep::train
