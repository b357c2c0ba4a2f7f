// Weights only: from a group of a checkpoint, or from any HDF5 file of named arrays.
#include <algorithm>
#include <cstring>
#include <unordered_set>

#include "checkpoint/load_steps.h"
#include "checkpoint/storage.h"
#include "lockstep/base/error.h"
#include "lockstep/base/names.h"
#include "lockstep/checkpoint/load.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::checkpoint {
namespace {

struct Weights {
  std::vector<NamedTensor> own;         ///< looked for in the group asked for
  std::vector<NamedTensor> from_model;  ///< buffers that it lacks
};

bool is_checkpoint(const std::string& path) {
  if (OpenFile(path, OpenFile::Mode::read).size() == 0) throw DataError("{}: is empty", path);
  const hdf5::File file = hdf5::File::open(path);
  return file.has_attribute("format") && file.attribute_type("format") == hdf5::ElementType::text &&
         file.text_attribute("format") == "lockstep";
}

Weights weights_of(const ModelState& model, const std::string& group, const FileIndex& index) {
  std::unordered_set<std::string_view> in_group;
  for (const TensorEntry& tensor : index.tensors) {
    if (tensor.group == group) in_group.insert(strip_wrapper_prefix(tensor.name));
  }
  Weights weights;
  for (const Param* param : model.params) weights.own.push_back({param->name, param->value});
  for (const Buffer* buffer : model.buffers) {
    const bool here = group == "model" || in_group.contains(strip_wrapper_prefix(buffer->name));
    (here ? weights.own : weights.from_model).push_back({buffer->name, buffer->value});
  }
  return weights;
}

bool holds_group(const FileIndex& index, const std::string& group) {
  return std::any_of(index.tensors.begin(), index.tensors.end(),
                     [&](const TensorEntry& tensor) { return tensor.group == group; });
}

/// The groups that hold weights of the model, none of an optimizer's.
std::vector<std::string> weight_groups(const FileIndex& index) {
  std::vector<std::string> names;
  for (const TensorEntry& tensor : index.tensors) {
    if (tensor.group != "model" && !tensor.group.starts_with("ema/")) continue;
    if (std::find(names.begin(), names.end(), tensor.group) == names.end()) names.push_back(tensor.group);
  }
  return names;
}

void check_or_warn(const std::string& path, Fit& result, const LoadOptions& options, LoadReport& report) {
  if (!result.problems.empty() && options.strict) throw_misfit(path, result.problems);
  for (const std::string& problem : result.problems)
    report.warnings.push_back(fmt::format("{}: {}", path, problem));
}

LoadReport load_from_checkpoint(const std::string& path, const ModelState& model,
                                comm::Communicator& communicator, const std::string& group,
                                const LoadOptions& options) {
  LoadReport report;
  report.index = read_index(path, communicator);
  Fit result;
  comm::together(communicator, [&] {
    if (!holds_group(report.index, group)) {
      const std::vector<std::string> groups = weight_groups(report.index);
      throw DataError("{}: holds no weights '{}', but {}", path, group,
                      groups.empty() ? "none at all" : fmt::format("{}", fmt::join(groups, ", ")));
    }
    const Weights weights = weights_of(model, group, report.index);
    const std::vector<Wanted> wanted = {{group, weights.own, false}, {"model", weights.from_model, true}};
    result = fit(stored_tensors(report.index), wanted, Widening::none);
    check_or_warn(path, result, options, report);
  });
  read_tensors(report.index, result.pairs, communicator);
  return report;
}

/// The arrays of a group, none of those in groups within.
std::vector<StoredTensor> list_arrays(const hdf5::Group& group, const std::string& name) {
  std::vector<StoredTensor> arrays;
  for (const hdf5::Link& link : group.links()) {
    if (link.kind != hdf5::ObjectKind::dataset) continue;
    const hdf5::Dataset dataset = group.open_dataset(link.name);
    arrays.push_back({name, link.name, std::string(hdf5::to_string(dataset.type())), dataset.shape()});
  }
  return arrays;
}

LoadReport load_from_arrays(const std::string& path, const ModelState& model, const std::string& group_name,
                            const LoadOptions& options) {
  LoadReport report;
  report.index.path = path;
  const hdf5::File file = hdf5::File::open(path);
  const hdf5::Group group = file.open_group(group_name);
  const std::vector<StoredTensor> stored = list_arrays(group, group_name);
  std::vector<NamedTensor> tensors;
  for (const Param* param : model.params) tensors.push_back({param->name, param->value});
  for (const Buffer* buffer : model.buffers) tensors.push_back({buffer->name, buffer->value});
  const std::vector<Wanted> wanted = {{group_name, tensors, false}};
  Fit result = fit(stored, wanted, Widening::lossless);
  check_or_warn(path, result, options, report);
  for (const Fit::Pair& pair : result.pairs) {
    group.open_dataset(stored[pair.stored].name)
        .read(hdf5::element_type_named(to_string(pair.target.dtype())),
              std::span(static_cast<std::byte*>(pair.target.raw()), pair.target.bytes()));
  }
  report.warnings.push_back(fmt::format("{}: is no Lockstep checkpoint: it has no digests to verify", path));
  return report;
}

}  // namespace

LoadReport load_weights(const std::string& path, const ModelState& model, comm::Communicator& communicator,
                        const std::string& group, const LoadOptions& options) {
  for (const Param* param : model.params) param->settle();
  bool with_index = false;
  comm::together(communicator, [&] {
    if (communicator.rank() == 0) with_index = is_checkpoint(path);
  });
  communicator.broadcast(&with_index, sizeof with_index, 0);
  if (with_index) return load_from_checkpoint(path, model, communicator, group, options);
  LoadReport report;
  comm::together(communicator, [&] { report = load_from_arrays(path, model, group, options); });
  return report;
}

}  // namespace lockstep::checkpoint
