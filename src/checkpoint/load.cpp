// Loading: what fits where, then reading with each block verified as it arrives.
#include "lockstep/checkpoint/load.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <unordered_map>

#include "base/files.h"
#include "checkpoint/cast.h"
#include "checkpoint/digest.h"
#include "checkpoint/load_steps.h"
#include "checkpoint/manifest.h"
#include "lockstep/base/error.h"
#include "lockstep/base/names.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/kernels/transfer.h"

namespace lockstep::checkpoint {
namespace {

bool is_ema(const Section& section) { return section.path.starts_with("ema/"); }

/// On one line, whatever a file may say.
std::string shown(const AttributeValue& value) {
  const auto* text = std::get_if<std::string>(&value);
  return text ? in_quotes(*text) : to_text(value);
}

/// Attributes of one section against those of its group.
void plan_attributes(const Section& section, const GroupEntry& group, LoadPlan& plan,
                     std::vector<std::string>& problems) {
  for (const Attribute& attribute : section.attributes) {
    const auto found = std::find_if(group.attributes.begin(), group.attributes.end(),
                                    [&](const auto& stored) { return stored.first == attribute.name; });
    if (found == group.attributes.end()) {
      problems.push_back(fmt::format("{} lacks the attribute '{}'", section.path, attribute.name));
    } else if (found->second.index() != attribute.value.index()) {
      problems.push_back(
          fmt::format("attribute '{}' of {} is of another type", attribute.name, section.path));
    } else if (attribute.restore) {
      plan.restores.push_back({&attribute, found->second});
    } else if (found->second != attribute.value) {
      problems.push_back(fmt::format("{} of {} is {} in the file, {} here", attribute.name, section.path,
                                     shown(found->second), shown(attribute.value)));
    }
  }
}

void plan_absent(const FileIndex& index, const Section& section, LoadPlan& plan) {
  plan.absent.push_back(&section);
  if (section.tensors.empty()) {
    plan.warnings.push_back(fmt::format("{} has no /{}: it starts anew", index.path, section.path));
  } else {
    plan.warnings.push_back(fmt::format("{} has no /{}: it starts from {}", index.path, section.path,
                                        is_ema(section) ? "the weights loaded" : "zero"));
  }
}

void warn_of_unused_groups(const FileIndex& index, const Request& request, LoadPlan& plan) {
  for (const GroupEntry& group : index.groups) {
    const bool listed = std::ranges::count(request.contents.sections, group.path, &Section::path) > 0 ||
                        std::ranges::count(request.elsewhere, group.path) > 0;
    if (!listed)
      plan.warnings.push_back(
          fmt::format("{} holds /{}, which this program does not load", index.path, group.path));
  }
}

/// What this rank holds of a tensor.
void take(const Tensor& whole, const NamedTensor& target, kernels::Backend* backend) {
  const auto& part = target.part;
  kernels::transfer(part ? part->sharding->part(part->param, whole) : whole, target.value, backend);
}

/// An EMA that begins now begins at the weights just loaded.
void copy_from_model(const Section& ema, const Contents& contents) {
  std::unordered_map<std::string, Tensor> weights;
  for (const Section& section : contents.sections) {
    if (section.path != "model") continue;
    for (const NamedTensor& tensor : section.tensors) weights.emplace(tensor.name, tensor.value);
  }
  for (const NamedTensor& shadow : ema.tensors) {
    const auto found = weights.find(shadow.name);
    if (found != weights.end()) take(found->second, shadow, contents.backend);
  }
}

/// An element type of the file other than the target's takes memory of its own.
void read_whole(const OpenFile& file, const TensorEntry& entry, const Tensor& target) {
  auto* const out = static_cast<std::byte*>(target.raw());
  if (entry.dtype == target.dtype()) return read_elements(file, entry, out);
  std::vector<std::byte> elements(entry.bytes);
  read_elements(file, entry, elements.data());
  if (!cast_elements(hdf5::element_type_named(to_string(entry.dtype)), elements.data(), target.dtype(), out,
                     target.numel())) {
    throw UsageError("{}: {} holds numbers beyond {}", file.path(), entry.path(), to_string(target.dtype()));
  }
}

/// A part takes memory for the whole while that is read, as digests are of it; so does what lies on a device.
void read_tensor(const OpenFile& file, const TensorEntry& entry, const NamedTensor& target,
                 kernels::Backend* backend) {
  const Tensor whole =
      target.part ? Tensor::empty(target.shape(), target.value.dtype()) : kernels::cpu_room_for(target.value);
  read_whole(file, entry, whole);
  take(whole, target, backend);
}

}  // namespace

std::vector<StoredTensor> stored_tensors(const FileIndex& index) {
  std::vector<StoredTensor> stored;
  stored.reserve(index.tensors.size());
  for (const TensorEntry& tensor : index.tensors) {
    const auto extents = tensor.shape.extents();
    stored.push_back(
        {tensor.group, tensor.name, std::string(to_string(tensor.dtype)), {extents.begin(), extents.end()}});
  }
  return stored;
}

void check_or_warn(const std::string& path, const Fit& result, const LoadOptions& options,
                   std::vector<std::string>& warnings) {
  if ((!result.problems.empty() && options.strict) || result.ambiguous) {
    throw DataError("{} does not fit this program's model: {}", path, fmt::join(result.problems, "; "));
  }
  for (const std::string& problem : result.problems) warnings.push_back(fmt::format("{}: {}", path, problem));
}

void read_elements(const OpenFile& file, const TensorEntry& entry, std::byte* out) {
  std::vector<std::uint64_t> digests;
  for (std::uint64_t done = 0; done < entry.bytes; done += block_bytes) {
    const std::uint64_t bytes = std::min(block_bytes, entry.bytes - done);
    file.read_at(entry.offset + done, out + done, bytes);
    digests.push_back(digest_of(out + done, bytes));
  }
  if (digest_of_blocks(digests) != entry.digest) {
    throw DataError("{}: {} is damaged: its digest does not fit", file.path(), entry.path());
  }
}

Request request_for(const FileIndex& index, const Contents& contents,
                    const comm::Communicator& communicator) {
  Request request{contents, {}, {}};
  for (const LateSections& late : contents.late) {
    SectionsToLoad found = late.to_load(index, communicator);
    std::ranges::move(found.sections, std::back_inserter(request.contents.sections));
    std::ranges::move(found.elsewhere, std::back_inserter(request.elsewhere));
    std::ranges::move(found.warnings, std::back_inserter(request.warnings));
  }
  return request;
}

LoadPlan plan_load(const FileIndex& index, const Request& request, const LoadOptions& options) {
  LoadPlan plan;
  plan.warnings = request.warnings;
  std::vector<Wanted> wanted;
  std::vector<std::string> attribute_problems;
  for (const Section& section : request.contents.sections) {
    const GroupEntry* group = index.group(section.path);
    if (!group && section.path != "model") {
      if (!section.tensors.empty() || !section.attributes.empty()) plan_absent(index, section, plan);
      continue;
    }
    wanted.push_back({section.path, section.tensors, false});
    if (group) plan_attributes(section, *group, plan, attribute_problems);
  }
  Fit result =
      fit(stored_tensors(index), wanted, options.narrow ? Conversion::rounding : Conversion::lossless);
  result.problems.insert(result.problems.end(), attribute_problems.begin(), attribute_problems.end());
  check_or_warn(index.path, result, options, plan.warnings);
  plan.pairs = std::move(result.pairs);
  warn_of_unused_groups(index, request, plan);
  return plan;
}

void read_tensors(const FileIndex& index, std::span<const Fit::Pair> pairs, kernels::Backend* backend,
                  comm::Communicator& communicator) {
  comm::together(communicator, [&] {
    for (const Fit::Pair& pair : pairs)
      read_tensor(*index.file, index.tensors[pair.stored], pair.target, backend);
  });
}

void finish_load(const LoadPlan& plan, const Contents& contents) {
  for (const Section* section : plan.absent) {
    if (is_ema(*section)) {
      copy_from_model(*section, contents);
    } else {
      for (const NamedTensor& tensor : section->tensors)
        kernels::transfer(Tensor::zeros(tensor.value.shape(), tensor.value.dtype()), tensor.value,
                          contents.backend);
    }
  }
  for (const LoadPlan::Restore& restore : plan.restores) restore.attribute->restore(restore.value);
  for (const Section& section : contents.sections) {
    if (section.loaded) section.loaded();
  }
}

LoadReport load_file(const std::string& path, const Contents& contents, comm::Communicator& communicator,
                     const LoadOptions& options) {
  LoadReport report;
  report.index = read_index(path, communicator);
  Request request;
  LoadPlan plan;
  comm::together(communicator, [&] {
    request = request_for(report.index, contents, communicator);
    plan = plan_load(report.index, request, options);
  });
  read_tensors(report.index, plan.pairs, contents.backend, communicator);
  comm::together(communicator, [&] { finish_load(plan, request.contents); });
  report.warnings = std::move(plan.warnings);
  return report;
}

}  // namespace lockstep::checkpoint
