// Numbers of a data set that are NaN or infinite: where they are, for errors and warnings.
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

/// A field that holds such a number, and where its first one is.
struct NotFinite {
  std::string_view field;  ///< of the dataset's
  std::string text;        ///< "a.h5: row 123 of field x holds nan"
};

/// One for each float field that has any. The batch is of these samples and in CPU memory.
std::vector<NotFinite> not_finite_in(const Dataset& dataset, std::span<const std::int64_t> samples,
                                     const Batch& batch);

/// Reads the samples, which the ranks share, each up to about max_bytes of them. The text of the first such
/// number, the same on every rank; empty if there is none. Collective; throws what the data set throws.
std::string first_not_finite(const Dataset& dataset, std::int64_t max_bytes, comm::HostGroup& world);

/// What may have spoiled the loss or the parameters of a step: a number in this rank's shards of the step
/// before, which may have spoiled its gradients alone, or else of this one: "a.h5: row 123 of field x holds
/// nan, in a sample of step 7". A field that had such numbers already before these two does not count, as the
/// loss takes care of them. Empty if there is none. backend: of the loader. Not collective.
std::string not_finite_in_step(Loader& loader, const Dataset& dataset, std::int64_t step,
                               kernels::Backend& backend);

}  // namespace lockstep::data
