// StateDict: the tensors and attributes of a checkpoint. Saving reads the tensors listed here, loading
// overwrites them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/autograd/param.h"
#include "lockstep/autograd/partition.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/kernels/context.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::comm {
class HostGroup;
}
namespace lockstep::data {
class Dataset;
}
namespace lockstep::ddp {
class Hook;
}
namespace lockstep::optim {
class Optimizer;
class Ema;
}  // namespace lockstep::optim

namespace lockstep::checkpoint {

/// The value of a group's attribute.
using AttributeValue = std::variant<std::int64_t, double, std::string>;

/// A small value next to the tensors of a section. Loading passes the stored value to `restore`; without
/// `restore`, the stored value must equal `value` (an algorithm, a rate).
struct Attribute {
  std::string name;      ///< of an attribute of the group
  AttributeValue value;  ///< A number, a list of numbers or a text
  /// Called with the file's value in a load; may be empty.
  std::function<void(const AttributeValue&)> restore;
};

/// A tensor under its dotted name: row-major memory of the CPU or of the device of StateDict::backend, of any
/// shape, 0-d and empty ones too. The handle shares memory with the model, so loading into it loads the
/// model.
struct NamedTensor {
  std::string name;       ///< full name in the group
  Tensor value;           ///< with `part`: this rank's elements, as a vector
  bool averaged = false;  ///< in "ema/...": an average, not a copy of the model's tensor
  std::optional<PartitionView> part =
      {};  ///< each rank holds a part; none: every rank holds the whole tensor

  /// The shape of the whole tensor, even if this rank has a part.
  const Shape& shape() const { return part ? part->shape : value.shape(); }
  /// Bytes of the whole tensor.
  std::size_t bytes() const { return static_cast<std::size_t>(shape().numel()) * bytes_of(value.dtype()); }
};

/// One group of the file: "model", "ema/0.999", "optimizer/exp_avg".
struct Section {
  std::string path;                   ///< such as "/ema/0.999"
  std::vector<NamedTensor> tensors;   ///< in the order in which they are stored
  std::vector<Attribute> attributes;  ///< of the group
  /// Called on every rank after a load has filled all tensors, for sections whose tensors are copies. Not
  /// collective.
  std::function<void()> loaded = {};
};

/// Whether it is "data/FIELD": the normalisation of a field, which the weights need.
inline bool is_data_group(std::string_view path) { return path.starts_with("data/"); }

/// The position in a run. `step` steps are done, so it is also the next step; the rest follows from it.
struct Position {
  std::int64_t step = 0;     ///< finished updates
  std::int64_t epoch = 0;    ///< passes over the data
  std::int64_t samples = 0;  ///< number of samples since the beginning of the run
  std::int64_t shards = 0;   ///< 0: unknown
  std::uint64_t seed = 0;    ///< of the run

  bool knows_samples() const { return samples != 0 || step == 0; }  ///< and the epoch
  bool knows_shards() const { return shards != 0; }                 ///< and the seed
  bool operator==(const Position&) const = default;
};

/// Facts about who wrote a file, by name ("version", "git", "compiler", "hosts" ...),
/// and about the data of its weights ("tokenizer", "x_range" ...), which later runs read.
using Provenance = std::map<std::string, std::string>;

/// Facts about this build and its environment: version, git, compiler, build_type, libraries, instruction_set
/// and math_library (of the CPU), hosts, and under Slurm slurm_job_id, slurm_restart_count, slurm_cluster.
/// Not collective.
Provenance provenance_of(const comm::HostGroup& world);

/// Every rank lists the same sections with the same bytes, or its parts of them. The ranks share the writing.
struct StateDict {
  Position position;              ///< position of this state in the run
  std::vector<Section> sections;  ///< one for each group of the file
  std::string config;             ///< the resolved configuration; may be empty
  Provenance provenance;          ///< stored with it
  /// Results of an evaluation, by name; stored as provenance.
  std::map<std::string, double> metrics = {};
  /// Copies tensors from and to its device. Null: all tensors are on the CPU. The file is the same.
  kernels::Backend* backend = nullptr;
  RunShape run = {};        ///< of the source of the optimizer's gradients, as far as known
  bool swapped_in = false;  ///< parameters of the model are EMA weights for now (optim::Ema::swap_in)
};

// Each add() sets StateDict::backend if its tensors are on a device; UsageError if another one is set
// already.

/// Lists the parameters and buffers of a model under "model", after Param::wait_ready() of each.
void add(StateDict& state_dict, const ModelState& model);
/// Lists each slot of an optimizer under "optimizer/SLOT", with the algorithm and the step count as
/// attributes. With a Partition each rank lists its parts.
void add(StateDict& state_dict, optim::Optimizer& optimizer);
/// Lists the EMA weights of each rate under "ema/RATE", with the number of updates as an attribute. With a
/// Partition each rank lists its parts.
void add(StateDict& state_dict, optim::Ema& ema);
/// Lists the normalisation of each normalised field under "data/FIELD", as `mean` and `deviation`. A load
/// normalises these fields by the file's values.
void add(StateDict& state_dict, data::Dataset& dataset);
/// Lists each state of a hook, which must be bound, under "hook/NAME".
void add(StateDict& state_dict, ddp::Hook& hook);

}  // namespace lockstep::checkpoint
