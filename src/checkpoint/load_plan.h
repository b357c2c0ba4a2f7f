// Private to the module: loading in steps: match the requested tensors with those of a file, read them,
// finish.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/shape.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/checkpoint/state_dict.h"

namespace lockstep::checkpoint {

/// A tensor in a file.
struct StoredTensor {
  std::string group;  ///< empty: at the root, or the file has no groups
  std::string name;
  std::optional<DType> dtype;  ///< none: a type that Lockstep does not know
  std::string_view type_name;  ///< "float32", "bool", "text" ...; a constant
  std::vector<std::int64_t> shape;
  bool transposed = false;  ///< a matrix to be read as its transpose; `shape` is still the file's
  bool ignored = false;     ///< known to be unused
};

/// The tensors to load from one group.
struct RequestedGroup {
  std::string group;
  std::span<const NamedTensor> tensors;
  bool subset = false;  ///< the group may hold other names
};

struct Match {
  struct Pair {
    std::size_t stored;  ///< index into the stored tensors
    NamedTensor target;
  };
  std::vector<Pair> pairs;
  std::vector<std::string> problems;  ///< "missing: model/a, model/b ... and 9 more", "wrong shape: model/c
                                      ///< is [3] in the file, [4] here" ...
  bool ambiguous = false;             ///< names collide, so a load would be ambiguous
};

/// Compares names without leading "module." and "_orig_mod.", on both sides. The target's type must hold all
/// values of the file's type (float32 from 16-bit floats, int64 from int32 ...); with `narrow` float32 also
/// takes float64.
Match match(std::span<const StoredTensor> stored, std::span<const RequestedGroup> requested, bool narrow);

std::vector<StoredTensor> stored_tensors(const FileIndex& index);
/// Turns problems into warnings if the options allow it; otherwise DataError listing them all: "FILE does not
/// fit this program's model: missing: ...; unexpected: ...".
void check_or_warn(const std::string& path, const Match& result, const LoadOptions& options,
                   std::vector<std::string>& warnings);

/// The plan of a load: the tensors to read, and the treatment of the rest of the state dict.
struct LoadPlan {
  LoadPlan() = default;
  LoadPlan(LoadPlan&&) = default;  // not copied: pointers lead into state_dict
  LoadPlan& operator=(LoadPlan&&) = default;

  StateDict state_dict;
  std::vector<Match::Pair> pairs;      ///< `stored` indexes FileIndex::tensors
  std::vector<const Section*> absent;  ///< optional sections that the file lacks
  std::vector<std::string> warnings;
  struct Restore {
    const Attribute* attribute;
    AttributeValue value;
  };
  std::vector<Restore> restores;
};

/// Changes no tensor. DataError listing every mismatch (with strict; otherwise they are warnings). Not
/// collective, and the same on every rank.
LoadPlan plan_load(const FileIndex& index, const StateDict& state_dict, const LoadOptions& options);

/// Reads the pairs. Each block is read and digested by one rank, which sends it to the others, or parts of a
/// sharded optimizer to their owners alone. Tensors on a device are read through CPU memory. DataError on all
/// ranks if a tensor is damaged; an error of a rank is the error of all. Collective.
void read_tensors(const FileIndex& index, const LoadPlan& plan, comm::HostGroup& world);

/// Calls read(world) if all ranks pass the same facts. Otherwise each rank reads for itself: read() of a
/// group of this rank. Collective.
void read_together(std::span<const std::uint64_t> facts, comm::HostGroup& world,
                   const std::function<void(comm::HostGroup&)>& read);

/// Fills the sections that the file lacks, restores the attributes, and calls Section::loaded.
void finish_load(const LoadPlan& plan);

}  // namespace lockstep::checkpoint
