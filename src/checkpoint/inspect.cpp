#include "lockstep/checkpoint/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>

#include "base/files.h"
#include "base/text.h"
#include "checkpoint/blocks.h"
#include "checkpoint/elements.h"
#include "checkpoint/layout.h"
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

void verify_tensors(const FileIndex& index, comm::HostGroup& world, VerifyReport& report) {
  const std::vector<FileExtent> tensors = file_extents_of(index);
  std::vector<std::uint64_t> mine;
  comm::run_on_all(world, [&] {
    for (const TensorExtent& extent : extents_of_rank(tensors, world.rank(), world.size())) {
      const BlockRun run = blocks_begun_in(extent);
      BlockReader reader(*index.file, index.tensors[run.tensor], run);
      while (!reader.next().empty()) {
      }
      mine.insert(mine.end(), reader.digests().begin(), reader.digests().end());
    }
  });
  const std::vector<std::uint64_t> digests = combine_digests(tensors, mine, world);
  for (std::size_t t = 0; t < digests.size(); ++t) {
    if (digests[t] == index.tensors[t].digest) continue;
    report.problems.push_back(fmt::format("{}: {}: digest {} does not match the manifest's {}", index.path,
                                          index.tensors[t].path(), to_hex(digests[t]),
                                          to_hex(index.tensors[t].digest)));
  }
}

}  // namespace

VerifyReport verify(const std::string& path, comm::HostGroup& world) {
  const comm::NamedCall call(world, "calls verify: " + file_name_of(path));
  VerifyReport report;
  report.path = path;
  try {
    const FileIndex index = read_index(path, world);
    report.step = index.position.step;
    report.tensors = static_cast<std::int64_t>(index.tensors.size());
    report.payload_bytes = index.payload_bytes();
    verify_tensors(index, world, report);
  } catch (const DataError& error) {
    report.problems.push_back(error.what());
  }
  return report;
}

namespace {

/// 0 between equal numbers and between two NaNs, infinite if one is not finite.
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
    // Without a tolerance bits are compared: 0 and -0 differ although their distance is 0.
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
  std::map<std::string, std::string> attributes;
  for_position(index.position,
               [&](const char* name, auto number) { attributes[name] = fmt::format("{}", number); });
  for (const GroupEntry& group : index.groups) {
    if (is_data_group(group.path)) continue;
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
  if (!(tolerance >= 0)) throw UsageError("a tolerance of {} is negative", tolerance);
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
      if (is_data_group(left.group)) continue;
      report.differences.push_back(
          {Kind::only_in_a, left.path(), left.shape, {}, left.dtype, left.dtype, 0, 0});
      continue;
    }
    const TensorEntry& right = *found->second;
    in_b.erase(found);
    if (left.shape != right.shape || left.dtype != right.dtype) {
      if (is_data_group(left.group)) continue;
      const Kind kind = left.shape != right.shape ? Kind::shape : Kind::dtype;
      report.differences.push_back(
          {kind, left.path(), left.shape, right.shape, left.dtype, right.dtype, 0, 0});
      continue;
    }
    if (!is_data_group(left.group)) {
      ++report.tensors;
      report.elements += left.shape.numel();
    }
    if (const TensorDifference difference = compare(a, left, b, right, tolerance); difference.different > 0) {
      report.differences.push_back(difference);
    }
  }
  for (const TensorEntry& right : b.tensors) {
    if (!in_b.contains(right.path()) || is_data_group(right.group)) continue;
    report.differences.push_back(
        {Kind::only_in_b, right.path(), {}, right.shape, right.dtype, right.dtype, 0, 0});
  }
  return report;
}

namespace {

using nlohmann::json;

constexpr std::size_t max_lines = 24;  // of differing tensors

/// In the order of TensorDifference::Kind.
constexpr std::array kind_names{"only_in_a", "only_in_b", "shape", "dtype", "values"};

std::vector<std::int64_t> extents_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

json json_of(const AttributeValue& value) {
  return std::visit([](const auto& held) { return json(held); }, value);
}

/// "step 20, epoch 3, samples 1280, shards 4, seed 1", without unknown numbers.
std::string text_of(const Position& position) {
  std::string text = fmt::format("step {}", position.step);
  if (position.knows_samples())
    text += fmt::format(", epoch {}, samples {}", position.epoch, position.samples);
  if (position.knows_shards()) text += fmt::format(", shards {}, seed {}", position.shards, position.seed);
  return text;
}

std::string line_of(const TensorDifference& difference, std::int64_t elements) {
  const auto& d = difference;
  const std::string path = on_one_line(d.path);
  switch (d.kind) {
    case TensorDifference::Kind::only_in_a:
      return fmt::format("{}: only in the first, {}", path, lockstep::to_string(d.shape_a));
    case TensorDifference::Kind::only_in_b:
      return fmt::format("{}: only in the second, {}", path, lockstep::to_string(d.shape_b));
    case TensorDifference::Kind::shape:
      return fmt::format("{}: shape {} against {}", path, lockstep::to_string(d.shape_a),
                         lockstep::to_string(d.shape_b));
    case TensorDifference::Kind::dtype:
      return fmt::format("{}: {} against {}", path, lockstep::to_string(d.dtype_a),
                         lockstep::to_string(d.dtype_b));
    case TensorDifference::Kind::values:
      break;
  }
  return fmt::format("{}: {} of {} differ, by at most {:.3g}", path, d.different,
                     pluralized(elements, "element"), d.max_abs);
}

}  // namespace

json to_json(const VerifyReport& report) {
  return {{"path", report.path}, {"whole", report.whole()},   {"problems", report.problems},
          {"step", report.step}, {"tensors", report.tensors}, {"payload_bytes", report.payload_bytes}};
}

std::string to_text(const VerifyReport& report) {
  if (report.whole()) {
    return fmt::format("{}: complete: step {}, {}, {}, all digests right\n", on_one_line(report.path),
                       report.step, pluralized(report.tensors, "tensor"),
                       pluralized(report.payload_bytes, "byte"));
  }
  std::string text;
  for (const std::string& problem : report.problems) text += on_one_line(problem) + "\n";
  return text;
}

json to_json(const DiffReport& report) {
  json attributes = json::array(), differences = json::array();
  for (const AttributeDifference& attribute : report.attributes) {
    attributes.push_back(json{{"name", attribute.name}, {"a", attribute.a}, {"b", attribute.b}});
  }
  for (const TensorDifference& d : report.differences) {
    differences.push_back(json{{"tensor", d.path},
                               {"kind", kind_names.at(static_cast<std::size_t>(d.kind))},
                               {"shape_a", extents_of(d.shape_a)},
                               {"shape_b", extents_of(d.shape_b)},
                               {"dtype_a", lockstep::to_string(d.dtype_a)},
                               {"dtype_b", lockstep::to_string(d.dtype_b)},
                               {"different", d.different},
                               {"max_abs", std::isfinite(d.max_abs) ? json(d.max_abs) : json(nullptr)}});
  }
  return {{"a", report.path_a},        {"b", report.path_b},
          {"same", report.same()},     {"tolerance", report.tolerance},
          {"tensors", report.tensors}, {"elements", report.elements},
          {"attributes", attributes},  {"differences", differences}};
}

std::string to_text(const DiffReport& report) {
  if (report.same()) {
    return fmt::format("same: {}, {}{}\n", pluralized(report.tensors, "tensor"),
                       pluralized(report.elements, "element"),
                       report.tolerance > 0 ? fmt::format(", within {:g}", report.tolerance) : ", every bit");
  }
  std::string text;
  for (const AttributeDifference& attribute : report.attributes) {
    const auto shown = [](const std::string& value) { return value.empty() ? std::string("none") : value; };
    text += on_one_line(
                fmt::format("{}: {} against {}", attribute.name, shown(attribute.a), shown(attribute.b))) +
            "\n";
  }
  const std::size_t shown = std::min(report.differences.size(), max_lines);
  for (std::size_t d = 0; d < shown; ++d)
    text += line_of(report.differences[d], report.differences[d].shape_a.numel()) + "\n";
  if (shown < report.differences.size()) {
    text += fmt::format("... and {}; all are in the JSON report\n",
                        pluralized(report.differences.size() - shown, "more tensor"));
  }
  return text;
}

json to_json(const Inspection& inspection) {
  const FileIndex& index = inspection.index;
  const Position& position = index.position;
  json groups = json::array(), tensors = json::array();
  for (const GroupEntry& group : index.groups) {
    json attributes = json::object();
    for (const auto& [name, value] : group.attributes) attributes[name] = json_of(value);
    groups.push_back(json{{"path", "/" + group.path}, {"attributes", attributes}});
  }
  for (const TensorSummary& tensor : inspection.tensors) {
    tensors.push_back(json{{"name", tensor.entry.path()},
                           {"shape", extents_of(tensor.entry.shape)},
                           {"dtype", lockstep::to_string(tensor.entry.dtype)},
                           {"bytes", tensor.entry.bytes},
                           {"digest", to_hex(tensor.entry.digest)},
                           {"digest_right", tensor.digest_right},
                           {"norm", tensor.norm},
                           {"min", tensor.min},
                           {"max", tensor.max},
                           {"not_finite", tensor.not_finite}});
  }
  return {{"path", index.path},
          {"format_version", index.version},
          {"step", position.step},
          {"epoch", position.knows_samples() ? json(position.epoch) : json()},
          {"samples", position.knows_samples() ? json(position.samples) : json()},
          {"shards", position.knows_shards() ? json(position.shards) : json()},
          {"seed", position.knows_shards() ? json(position.seed) : json()},
          {"world_size", index.world_size},
          {"created", index.created},
          {"digest", to_hex(index.digest)},
          {"provenance", index.provenance},
          {"config", index.config},
          {"groups", groups},
          {"tensors", tensors}};
}

std::string to_text(const Inspection& inspection) {
  const FileIndex& index = inspection.index;
  std::string text =
      fmt::format("{}\n{}; written by {} at {}\n\n", on_one_line(index.path), text_of(index.position),
                  pluralized(index.world_size, "rank"), index.created);
  std::size_t name_width = 4, shape_width = 5;
  for (const TensorEntry& tensor : index.tensors) {
    name_width = std::max(name_width, on_one_line(tensor.path()).size());
    shape_width = std::max(shape_width, lockstep::to_string(tensor.shape).size());
  }
  const auto row = [&](auto&&... cells) {
    text += fmt::format(fmt::runtime("{:<{}}  {:<{}}  {:<8}  {:>11}  {:>11}  {:>11}  {:>10}{}\n"), cells...);
  };
  row("name", name_width, "shape", shape_width, "dtype", "norm", "min", "max", "not finite", "");
  for (const TensorSummary& tensor : inspection.tensors) {
    row(on_one_line(tensor.entry.path()), name_width, lockstep::to_string(tensor.entry.shape), shape_width,
        lockstep::to_string(tensor.entry.dtype), fmt::format("{:.4g}", tensor.norm),
        fmt::format("{:.4g}", tensor.min), fmt::format("{:.4g}", tensor.max), tensor.not_finite,
        tensor.digest_right ? "" : "  DIGEST WRONG");
  }
  text += "\n";
  // --json has all: a table may have thousands of columns, a tokenizer megabytes.
  constexpr std::size_t max_bytes = 1000;
  for (const GroupEntry& group : index.groups) {
    for (const auto& [name, value] : group.attributes) {
      text += fmt::format("/{} {} = {}\n", on_one_line(group.path), on_one_line(name),
                          on_one_line(beginning_of(to_text(value), max_bytes)));
    }
  }
  for (const auto& [name, value] : index.provenance)
    text +=
        fmt::format("/provenance {} = {}\n", on_one_line(name), on_one_line(beginning_of(value, max_bytes)));
  return text;
}

}  // namespace lockstep::checkpoint
