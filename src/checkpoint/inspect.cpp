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

TensorSummary summarise(BlockReader& reader, const TensorEntry& tensor) {
  TensorSummary summary;
  summary.entry = tensor;
  double squares = 0, min = std::numeric_limits<double>::infinity(), max = -min;
  summary.digest_right = reader.read_all(tensor, [&](std::span<const std::byte> bytes) {
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
  });
  summary.norm = std::sqrt(squares);
  if (min <= max) summary.min = min, summary.max = max;
  return summary;
}

}  // namespace

Inspection inspect(const std::string& path) {
  Inspection inspection;
  inspection.index = read_index(path);
  BlockReader reader(inspection.index);
  for (const TensorEntry& tensor : inspection.index.tensors)
    inspection.tensors.push_back(summarise(reader, tensor));
  return inspection;
}

namespace {

void verify_tensors(const FileIndex& index, comm::Communicator& communicator, VerifyReport& report) {
  const std::vector<Place> places = places_of(index);
  std::vector<std::uint64_t> mine;
  comm::together(communicator, [&] {
    BlockReader reader(index);
    for (const Piece& piece : file_share(places, communicator.rank(), communicator.size())) {
      const BlockRun run = blocks_begun_in(piece);
      for (std::uint64_t block = run.first; block < run.first + run.count; ++block) {
        const TensorEntry& tensor = index.tensors[run.tensor];
        const std::uint64_t begin = block * block_bytes;
        const auto bytes = reader.read(tensor, begin, end_of_block(block, tensor.bytes) - begin);
        mine.push_back(digest_of(bytes.data(), bytes.size()));
      }
    }
  });
  const std::vector<std::uint64_t> digests = combine_digests(places, mine, communicator);
  for (std::size_t t = 0; t < digests.size(); ++t) {
    if (digests[t] == index.tensors[t].digest) continue;
    report.problems.push_back(fmt::format("{}: {}: digest {} does not fit the manifest's {}", index.path,
                                          index.tensors[t].path(), to_hex(digests[t]),
                                          to_hex(index.tensors[t].digest)));
  }
}

}  // namespace

VerifyReport verify(const std::string& path, comm::Communicator& communicator) {
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

/// Both files at once, each verified as it is read.
class Comparison {
 public:
  Comparison(const FileIndex& a, const FileIndex& b, double tolerance)
      : reader_a_(a), reader_b_(b), path_a_(a.path), path_b_(b.path), tolerance_(tolerance) {}

  /// Counts elements of equal dtype and shape that differ.
  TensorDifference compare(const TensorEntry& a, const TensorEntry& b) {
    TensorDifference result{
        TensorDifference::Kind::values, a.path(), a.shape, b.shape, a.dtype, b.dtype, 0, 0};
    std::vector<std::uint64_t> digests_a, digests_b;
    for (std::uint64_t done = 0; done < a.bytes; done += block_bytes) {
      const std::uint64_t bytes = std::min(block_bytes, a.bytes - done);
      const auto block_a = reader_a_.read(a, done, bytes), block_b = reader_b_.read(b, done, bytes);
      digests_a.push_back(digest_of(block_a.data(), bytes));
      digests_b.push_back(digest_of(block_b.data(), bytes));
      if (std::memcmp(block_a.data(), block_b.data(), bytes) != 0) {
        with_element_type(a.dtype, [&]<class T>() { count<T>(block_a, block_b, result); });
      }
    }
    if (digest_of_blocks(digests_a) != a.digest) throw_damaged(path_a_, a);
    if (digest_of_blocks(digests_b) != b.digest) throw_damaged(path_b_, b);
    return result;
  }

 private:
  template <class T>
  void count(std::span<const std::byte> a, std::span<const std::byte> b, TensorDifference& result) const {
    for (std::size_t i = 0; i < a.size() / sizeof(T); ++i) {
      if (std::memcmp(a.data() + i * sizeof(T), b.data() + i * sizeof(T), sizeof(T)) == 0) continue;
      const double distance = distance_of(as_double(element_at<T>(a, i)), as_double(element_at<T>(b, i)));
      // Without a tolerance bits are compared, so that 0 and -0 differ although nothing lies between them.
      if (tolerance_ > 0 && distance <= tolerance_) continue;
      ++result.different;
      result.max_abs = std::max(result.max_abs, distance);
    }
  }

  static double distance_of(double x, double y) {
    if (x == y || (std::isnan(x) && std::isnan(y))) return 0;
    const double distance = std::abs(x - y);
    return std::isfinite(distance) ? distance : std::numeric_limits<double>::infinity();
  }

  [[noreturn]] static void throw_damaged(const std::string& path, const TensorEntry& tensor) {
    throw DataError("{}: {} is damaged: its digest does not fit", path, tensor.path());
  }

  BlockReader reader_a_, reader_b_;
  std::string path_a_, path_b_;
  double tolerance_;
};

std::map<std::string, std::string> attributes_of(const FileIndex& index) {
  const Position& position = index.position;
  std::map<std::string, std::string> attributes = {{"step", fmt::format("{}", position.step)},
                                                   {"epoch", fmt::format("{}", position.epoch)},
                                                   {"samples", fmt::format("{}", position.samples)},
                                                   {"shards", fmt::format("{}", position.shards)},
                                                   {"seed", fmt::format("{}", position.seed)}};
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
  Comparison comparison(a, b, tolerance);
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
    if (const TensorDifference difference = comparison.compare(left, right); difference.different > 0) {
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
