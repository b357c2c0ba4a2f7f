// Contents: what a checkpoint holds, as data. Saving reads the tensors listed here, loading writes them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "lockstep/autograd/param.h"
#include "lockstep/autograd/partition.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::comm {
class HostGroup;
}
namespace lockstep::ddp {
class Hook;
}
namespace lockstep::optim {
class Optimizer;
class Ema;
}  // namespace lockstep::optim

namespace lockstep::checkpoint {

/// Integers, numbers and texts are what attributes of groups may be.
using AttributeValue = std::variant<std::int64_t, double, std::string>;

/// A small value next to the tensors of a section. With `restore`, loading hands it the stored value;
/// without, the stored value must equal `value` (an algorithm, a rate).
struct Attribute {
  std::string name;
  AttributeValue value;
  std::function<void(const AttributeValue&)> restore;
};

/// A tensor under its dotted name. Plain row-major memory of the CPU or of the device of Contents::backend;
/// 0-d and empty tensors are fine. The handle shares memory with the model, so loading into it loads the
/// model.
struct NamedTensor {
  std::string name;
  Tensor value;                            ///< with `part`: this rank's elements, as a vector
  bool averaged = false;                   ///< under "ema/...": not just a copy of the model's
  std::optional<PartitionView> part = {};  ///< ranks hold a part of it each; none: every rank holds all

  const Shape& shape() const { return part ? part->shape : value.shape(); }
  std::size_t bytes() const { return static_cast<std::size_t>(shape().numel()) * bytes_of(value.dtype()); }
};

/// One group of the file: "model", "ema/0.999", "optimizer/exp_avg".
struct Section {
  std::string path;
  std::vector<NamedTensor> tensors;
  std::vector<Attribute> attributes;
  /// Called on every rank when all tensors hold what a load found for them, where they are copies that
  /// somebody takes back. Not collective.
  std::function<void()> loaded = {};
};

struct FileIndex;  // index.h

/// What to load, where that depends on the file.
struct SectionsToLoad {
  std::vector<Section> sections;
  std::vector<std::string> of_other_ranks;  ///< groups of the file that other ranks load
  std::vector<std::string> warnings;        ///< one line each
};

/// Sections that are listed when it is known what for: to save them (where ranks hold different things, they
/// gather them then) or to load them from a file.
struct LateSections {
  std::function<std::vector<Section>(comm::HostGroup&)> to_save;  ///< collective
  std::function<SectionsToLoad(const FileIndex&, const comm::HostGroup&)> to_load;
};

/// The place in a run. `step` steps are done, so it is also the next step; the rest follows from it.
struct Position {
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  std::int64_t samples = 0;
  std::int64_t shards = 0;  ///< 0: not known to the caller
  std::uint64_t seed = 0;

  bool knows_samples() const { return samples != 0 || step == 0; }  ///< and the epoch
  bool knows_shards() const { return shards != 0; }                 ///< and the seed
  bool operator==(const Position&) const = default;
};

/// Facts about who wrote a file, by name ("version", "git", "compiler", "hosts" ...). Information only.
using Provenance = std::map<std::string, std::string>;

/// What this build and its environment are: version, git, compiler, build_type, libraries, instruction_set,
/// hosts, and under Slurm slurm_job_id, slurm_restart_count, slurm_cluster. Not collective.
Provenance provenance_of(const comm::HostGroup& communicator);

/// Every rank holds the same sections with the same bytes, or its parts of them; ranks share the writing.
struct Contents {
  Position position;
  std::vector<Section> sections;
  std::vector<LateSections> late = {};
  std::string config;  ///< the resolved configuration; may be empty
  Provenance provenance;
  /// What an evaluation of it found, by name; stored as provenance.
  std::map<std::string, double> metrics = {};
  /// Of the device on which some tensors are: it copies them, piece by piece. None: all are on the CPU. The
  /// file is the same.
  kernels::Backend* backend = nullptr;
};

// What is on a device settles Contents::backend; UsageError if that is another one already.

/// Lists the parameters and buffers of a model under "model", once all of it is here (Param::wait_ready()).
void add(Contents& contents, const ModelState& model);
/// Lists each slot of an optimizer under "optimizer/SLOT", its algorithm and step count as attributes. Of a
/// sharded one each rank lists its parts.
void add(Contents& contents, optim::Optimizer& optimizer);
/// Lists the EMA weights of each rate under "ema/RATE", with the count of updates as attribute. Of a sharded
/// one, see the optimizer.
void add(Contents& contents, optim::Ema& ema);
/// Lists what a hook remembers: "hook/NAME" where ranks hold the same, "hook/NAME.RANK" where each has its
/// own. Saving holds the latter of all ranks in the memory of each while it lasts. Loading, each rank takes
/// its own; if another number of ranks wrote the file, an equal share of their sum, which is a warning.
void add(Contents& contents, ddp::Hook& hook);

}  // namespace lockstep::checkpoint
