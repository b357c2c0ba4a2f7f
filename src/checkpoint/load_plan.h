// Private to the module: loading in steps: what of a file goes where, then reading it.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/shape.h"
#include "lockstep/checkpoint/contents.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/checkpoint/index.h"

namespace lockstep::checkpoint {

/// An array in a file.
struct StoredTensor {
  std::string group;  ///< empty: of a file without groups, or at its root
  std::string name;
  std::optional<DType> dtype;  ///< none: not a number type that Lockstep knows
  std::string_view type_name;  ///< "float32", "bool", "text" ...; a constant
  std::vector<std::int64_t> shape;
  bool transposed = false;  ///< a matrix to be read as its transpose; `shape` is still the file's
  bool ignored = false;     ///< known to be unused
};

/// Element types in files that a tensor may be loaded from.
enum class Conversion {
  lossless,  ///< those whose every value it holds: float32 from 16-bit floats, int64 from int32 ...
  rounding,  ///< and float32 from float64
};

/// What is to be loaded from one group.
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
  bool ambiguous = false;             ///< names collide: no way of loading is right
};

/// Compares names without leading "module." and "_orig_mod.", on both sides.
Match match(std::span<const StoredTensor> stored, std::span<const RequestedGroup> wanted,
            Conversion conversion);

/// What is to be loaded from one file: contents with their late sections listed.
struct Request {
  Contents contents;
  std::vector<std::string> of_other_ranks, warnings;  ///< see SectionsToLoad
};

/// Not collective, and the same on every rank but for what each takes as its own.
Request request_for(const FileIndex& index, const Contents& contents, const comm::HostGroup& communicator);

/// What will be read, and what will be done without it.
struct LoadPlan {
  std::vector<Match::Pair> pairs;      ///< `stored` indexes FileIndex::tensors
  std::vector<const Section*> absent;  ///< sections that the file lacks and that can do without
  std::vector<std::string> warnings;
  struct Restore {
    const Attribute* attribute;
    AttributeValue value;
  };
  std::vector<Restore> restores;
};

/// Touches nothing. DataError listing all that does not fit (with strict; otherwise warnings). The request
/// must outlive the plan.
LoadPlan plan_load(const FileIndex& index, const Request& request, const LoadOptions& options);

/// Reads the pairs, each block verified as it arrives; what is on the backend's device goes there from CPU
/// memory. DataError if the file is damaged. Collective.
void read_tensors(const FileIndex& index, std::span<const Match::Pair> pairs, kernels::Backend* backend,
                  comm::HostGroup& communicator);

/// Fills what the file lacks, restores the attributes, and tells the sections.
void finish_load(const LoadPlan& plan, const Contents& contents);

std::vector<StoredTensor> stored_tensors(const FileIndex& index);
/// Turns problems into warnings if the options allow it; otherwise DataError listing them all: "FILE does not
/// fit this program's model: missing: ...; unexpected: ...".
void check_or_warn(const std::string& path, const Match& result, const LoadOptions& options,
                   std::vector<std::string>& warnings);

}  // namespace lockstep::checkpoint
