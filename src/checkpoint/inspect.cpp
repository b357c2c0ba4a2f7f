#include "lockstep/checkpoint/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>

#include "checkpoint/blocks.h"
#include "checkpoint/elements.h"
#include "checkpoint/manifest.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/index.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::checkpoint {
namespace {

TensorSummary summarise(const OpenFile& file, const TensorEntry& tensor) {
  TensorSummary summary;
  summary.entry = tensor;
  double squares = 0, min = std::numeric_limits<double>::infinity(), max = -min;
  BlockReader reader(file, tensor);
  for (auto bytes = reader.next(); !bytes.empty(); bytes = reader.next()) {
    with_element_type(tensor.dtype, [&]<class T>() {
      for (std::size_t i = 0; i < bytes.size() / sizeof(T); ++i) {
        const double value = as_double(element_at<T>(bytes, i));
        if (!std::isfinite(value)) {
          ++summary.not_finite;
          continue;
        }
        squares += value * value;
        min = std::min(min, value);
        max = std::max(max, value);
      }
    });
  }
  summary.digest_right = reader.digest_fits();
  summary.norm = std::sqrt(squares);
  if (min <= max) summary.min = min, summary.max = max;
  return summary;
}

}  // namespace

Inspection inspect(const std::string& path) {
  Inspection inspection;
  inspection.index = read_index(path);
  for (const TensorEntry& tensor : inspection.index.tensors)
    inspection.tensors.push_back(summarise(*inspection.index.file, tensor));
  return inspection;
}

namespace {

void verify_tensors(const FileIndex& index, comm::HostGroup& communicator, VerifyReport& report) {
  const std::vector<FileExtent> tensors = file_extents_of(index);
  std::vector<std::uint64_t> mine;
  comm::run_on_all(communicator, [&] {
    for (const TensorExtent& extent : extents_of_rank(tensors, communicator.rank(), communicator.size())) {
      const BlockRun run = blocks_begun_in(extent);
      BlockReader reader(*index.file, index.tensors[run.tensor], run);
      while (!reader.next().empty()) {
      }
      mine.insert(mine.end(), reader.digests().begin(), reader.digests().end());
    }
  });
  const std::vector<std::uint64_t> digests = combine_digests(tensors, mine, communicator);
  for (std::size_t t = 0; t < digests.size(); ++t) {
    if (digests[t] == index.tensors[t].digest) continue;
    report.problems.push_back(fmt::format("{}: {}: digest {} does not fit the manifest's {}", index.path,
                                          index.tensors[t].path(), to_hex(digests[t]),
                                          to_hex(index.tensors[t].digest)));
  }
}

}  // namespace

VerifyReport verify(const std::string& path, comm::HostGroup& communicator) {
  VerifyReport report;
  report.path = path;
  try {
    const FileIndex index = read_index(path, communicator);
    report.step = index.position.step;
    report.tensors = static_cast<std::int64_t>(index.tensors.size());
    report.payload_bytes = index.payload_bytes();
    verify_tensors(index, communicator, report);
  } catch (const DataError& error) {
    report.problems.push_back(error.what());
  }
  return report;
}

namespace {

/// The distance that counts: none between equal numbers or two NaNs, infinite where one is not finite.
double distance_of(double x, double y) {
  if (x == y || (std::isnan(x) && std::isnan(y))) return 0;
  const double distance = std::abs(x - y);
  return std::isfinite(distance) ? distance : std::numeric_limits<double>::infinity();
}

template <class T>
void count_different(std::span<const std::byte> a, std::span<const std::byte> b, double tolerance,
                     TensorDifference& result) {
  for (std::size_t i = 0; i < a.size() / sizeof(T); ++i) {
    if (std::memcmp(a.data() + i * sizeof(T), b.data() + i * sizeof(T), sizeof(T)) == 0) continue;
    const double distance = distance_of(as_double(element_at<T>(a, i)), as_double(element_at<T>(b, i)));
    // Without a tolerance bits are compared, so that 0 and -0 differ although nothing is between them.
    if (tolerance > 0 && distance <= tolerance) continue;
    ++result.different;
    result.max_abs = std::max(result.max_abs, distance);
  }
}

/// Counts elements of equal dtype and shape that differ; both tensors are verified as they are read.
TensorDifference compare(const FileIndex& index_a, const TensorEntry& a, const FileIndex& index_b,
                         const TensorEntry& b, double tolerance) {
  TensorDifference result{TensorDifference::Kind::values, a.path(), a.shape, b.shape, a.dtype, b.dtype, 0, 0};
  BlockReader reader_a(*index_a.file, a), reader_b(*index_b.file, b);
  for (auto block_a = reader_a.next(); !block_a.empty(); block_a = reader_a.next()) {
    const auto block_b = reader_b.next();
    if (std::memcmp(block_a.data(), block_b.data(), block_a.size()) != 0)
      with_element_type(a.dtype, [&]<class T>() { count_different<T>(block_a, block_b, tolerance, result); });
  }
  reader_a.finish();
  reader_b.finish();
  return result;
}

std::map<std::string, std::string> attributes_of(const FileIndex& index) {
  std::map<std::string, std::string> attributes = {{"seed", fmt::format("{}", index.position.seed)}};
  for (const PositionCount& count : position_counts)
    attributes[count.name] = fmt::format("{}", index.position.*count.value);
  for (const GroupEntry& group : index.groups) {
    for (const auto& [name, value] : group.attributes)
      attributes["/" + group.path + " " + name] = to_text(value);
  }
  return attributes;
}

std::vector<AttributeDifference> compare_attributes(const FileIndex& a, const FileIndex& b) {
  std::map<std::string, std::string> left = attributes_of(a), right = attributes_of(b);
  std::vector<AttributeDifference> differences;
  for (const auto& [name, value] : left) {
    const auto other = right.find(name);
    if (other == right.end() || other->second != value) {
      differences.push_back({name, value, other == right.end() ? "" : other->second});
    }
  }
  for (const auto& [name, value] : right) {
    if (!left.contains(name)) differences.push_back({name, "", value});
  }
  return differences;
}

}  // namespace

DiffReport diff(const std::string& path_a, const std::string& path_b, double tolerance) {
  if (!(tolerance >= 0)) throw UsageError("a tolerance of {}: it must not be negative", tolerance);
  const FileIndex a = read_index(path_a), b = read_index(path_b);
  DiffReport report;
  report.path_a = path_a;
  report.path_b = path_b;
  report.tolerance = tolerance;
  report.attributes = compare_attributes(a, b);

  std::unordered_map<std::string, const TensorEntry*> in_b;
  for (const TensorEntry& tensor : b.tensors) in_b.emplace(tensor.path(), &tensor);
  using Kind = TensorDifference::Kind;
  for (const TensorEntry& left : a.tensors) {
    const auto found = in_b.find(left.path());
    if (found == in_b.end()) {
      report.differences.push_back(
          {Kind::only_in_a, left.path(), left.shape, {}, left.dtype, left.dtype, 0, 0});
      continue;
    }
    const TensorEntry& right = *found->second;
    in_b.erase(found);
    if (left.shape != right.shape || left.dtype != right.dtype) {
      const Kind kind = left.shape != right.shape ? Kind::shape : Kind::dtype;
      report.differences.push_back(
          {kind, left.path(), left.shape, right.shape, left.dtype, right.dtype, 0, 0});
      continue;
    }
    ++report.tensors;
    report.elements += left.shape.numel();
    if (const TensorDifference difference = compare(a, left, b, right, tolerance); difference.different > 0) {
      report.differences.push_back(difference);
    }
  }
  for (const TensorEntry& right : b.tensors) {
    if (!in_b.contains(right.path())) continue;
    report.differences.push_back(
        {Kind::only_in_b, right.path(), {}, right.shape, right.dtype, right.dtype, 0, 0});
  }
  return report;
}

}  // namespace lockstep::checkpoint
