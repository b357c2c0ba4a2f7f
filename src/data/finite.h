// Finds non-finite values (NaN, infinity) of a data set, for errors and warnings.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/host_group.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/loader.h"
#include "lockstep/kernels/backend.h"

namespace lockstep::data {

/// A field with non-finite values, and the location of the first one.
struct NotFinite {
  std::string_view field;  ///< a name of the data set's fields
  std::string text;        ///< "a.h5: row 123 of field x holds nan"
};

/// One result for each float field with non-finite values. `batch` holds these samples in CPU memory.
std::vector<NotFinite> not_finite_in(const Dataset& dataset, std::span<const std::int64_t> samples,
                                     const Batch& batch);

/// Reads the samples, distributed over ranks, up to about max_bytes per rank. Returns the text of the first
/// non-finite value, the same on every rank, or an empty text. Collective; throws what the data set throws.
std::string first_not_finite(const Dataset& dataset, std::int64_t max_bytes, comm::HostGroup& world);

/// The non-finite value that may have made the loss or the parameters of a step non-finite, in this rank's
/// shards of the previous step (which may affect its gradients only) or of this one: "a.h5: row 123 of field
/// x holds nan, in a sample of step 7". Ignores fields with non-finite values in the step before these two,
/// because the loss handles them. Empty if it finds no value. backend: that of the loader. Not collective.
std::string not_finite_in_step(Loader& loader, const Dataset& dataset, std::int64_t step,
                               kernels::Backend& backend);

}  // namespace lockstep::data
