#include "checkpoint/report.h"
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "checkpoint/blocks.h"
#include "checkpoint/manifest.h"

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

constexpr std::size_t most_lines = 24;  // of differing tensors

std::string_view to_string(TensorDifference::Kind kind) {
  switch (kind) {
    case TensorDifference::Kind::only_in_a:
      return "only_in_a";
    case TensorDifference::Kind::only_in_b:
      return "only_in_b";
    case TensorDifference::Kind::shape:
      return "shape";
    case TensorDifference::Kind::dtype:
      return "dtype";
    case TensorDifference::Kind::values:
      break;
  }
  return "values";
}

std::vector<std::int64_t> extents_of(const Shape& shape) { return {shape.begin(), shape.end()}; }

json json_of(const AttributeValue& value) {
  return std::visit([](const auto& held) { return json(held); }, value);
}

/// "step 20, epoch 3, samples 1280, shards 4, seed 1", without what is not known.
std::string text_of(const Position& position) {
  std::string text = fmt::format("step {}", position.step);
  if (position.knows_samples())
    text += fmt::format(", epoch {}, samples {}", position.epoch, position.samples);
  if (position.knows_shards()) text += fmt::format(", shards {}, seed {}", position.shards, position.seed);
  return text;
}

std::string line_of(const TensorDifference& difference, std::int64_t elements) {
  const auto& d = difference;
  switch (d.kind) {
    case TensorDifference::Kind::only_in_a:
      return fmt::format("{}: only in the first, {}\n", d.path, lockstep::to_string(d.shape_a));
    case TensorDifference::Kind::only_in_b:
      return fmt::format("{}: only in the second, {}\n", d.path, lockstep::to_string(d.shape_b));
    case TensorDifference::Kind::shape:
      return fmt::format("{}: shape {} against {}\n", d.path, lockstep::to_string(d.shape_a),
                         lockstep::to_string(d.shape_b));
    case TensorDifference::Kind::dtype:
      return fmt::format("{}: {} against {}\n", d.path, lockstep::to_string(d.dtype_a),
                         lockstep::to_string(d.dtype_b));
    case TensorDifference::Kind::values:
      break;
  }
  return fmt::format("{}: {} of {} differ, by at most {:.3g}\n", d.path, d.different,
                     pluralized(elements, "element"), d.max_abs);
}

}  // namespace

json to_json(const VerifyReport& report) {
  return {{"path", report.path}, {"whole", report.whole()},   {"problems", report.problems},
          {"step", report.step}, {"tensors", report.tensors}, {"payload_bytes", report.payload_bytes}};
}

std::string to_text(const VerifyReport& report) {
  if (report.whole()) {
    return fmt::format("{}: whole: step {}, {}, {}, all digests right\n", report.path, report.step,
                       pluralized(report.tensors, "tensor"), pluralized(report.payload_bytes, "byte"));
  }
  std::string text;
  for (const std::string& problem : report.problems) text += problem + "\n";
  return text;
}

json to_json(const DiffReport& report) {
  json attributes = json::array(), differences = json::array();
  for (const AttributeDifference& attribute : report.attributes) {
    attributes.push_back(json{{"name", attribute.name}, {"a", attribute.a}, {"b", attribute.b}});
  }
  for (const TensorDifference& d : report.differences) {
    differences.push_back(json{{"tensor", d.path},
                               {"kind", to_string(d.kind)},
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
    text += fmt::format("{}: {} against {}\n", attribute.name, shown(attribute.a), shown(attribute.b));
  }
  const std::size_t shown = std::min(report.differences.size(), most_lines);
  for (std::size_t d = 0; d < shown; ++d)
    text += line_of(report.differences[d], report.differences[d].shape_a.numel());
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
  std::string text = fmt::format("{}\n{}; written by {} at {}\n\n", index.path, text_of(index.position),
                                 pluralized(index.world_size, "rank"), index.created);
  std::size_t name_width = 4, shape_width = 5;
  for (const TensorEntry& tensor : index.tensors) {
    name_width = std::max(name_width, tensor.path().size());
    shape_width = std::max(shape_width, lockstep::to_string(tensor.shape).size());
  }
  const auto row = [&](auto&&... cells) {
    text += fmt::format(fmt::runtime("{:<{}}  {:<{}}  {:<8}  {:>11}  {:>11}  {:>11}  {:>10}{}\n"), cells...);
  };
  row("name", name_width, "shape", shape_width, "dtype", "norm", "min", "max", "not finite", "");
  for (const TensorSummary& tensor : inspection.tensors) {
    row(tensor.entry.path(), name_width, lockstep::to_string(tensor.entry.shape), shape_width,
        lockstep::to_string(tensor.entry.dtype), fmt::format("{:.4g}", tensor.norm),
        fmt::format("{:.4g}", tensor.min), fmt::format("{:.4g}", tensor.max), tensor.not_finite,
        tensor.digest_right ? "" : "  DIGEST WRONG");
  }
  text += "\n";
  for (const GroupEntry& group : index.groups) {
    for (const auto& [name, value] : group.attributes)
      text += fmt::format("/{} {} = {}\n", group.path, name, to_text(value));
  }
  for (const auto& [name, value] : index.provenance)
    text += fmt::format("/provenance {} = {}\n", on_one_line(name), on_one_line(value));
  return text;
}

}  // namespace lockstep::checkpoint
