// lockstep prepare: converts csv, idx, cifar or text files to a data file.
#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/verb.h"
#include "data/prepare.h"

namespace lockstep::cli {
namespace {

/// "1,8,8" -> [1, 8, 8]
Shape parse_shape(const std::string& text) {
  std::vector<std::int64_t> extents;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const auto [next, error] = std::from_chars(at, end, extents.emplace_back());
    if (error != std::errc() || (next != end && (*next != ',' || next + 1 == end)) || extents.back() < 1) {
      throw UsageError("--shape {}: must be C,H,W, three integers above 0", text);
    }
    at = next + 1;
  }
  if (extents.size() != 3) throw UsageError("--shape {}: must be C,H,W, three integers above 0", text);
  return Shape(extents);
}

char parse_separator(const std::string& text) {
  if (text == "," || text == "comma") return ',';
  if (text == ";" || text == "semicolon") return ';';
  if (text == "\t" || text == "\\t" || text == "tab") return '\t';
  throw UsageError("--separator {}: must be comma, semicolon or tab", text);
}

bool parse_yes_or_no(const std::string& text) {
  if (text != "yes" && text != "no") throw UsageError("--heading {}: must be yes, no or auto", text);
  return text == "yes";
}

/// "0 setosa, 1 versicolor, ..."
std::string numbered(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", i, names[i]);
  return text;
}

data::Prepared run(const po::variables_map& values, const std::string& format, const Arguments& inputs,
                   const data::Output& out) {
  const std::string statistics = values.count("statistics") ? values["statistics"].as<std::string>() : "";
  if (format == "csv") {
    return data::prepare_csv(
        inputs, out,
        {.label = values["label"].as<std::string>(),
         .separator =
             values.count("separator") ? parse_separator(values["separator"].as<std::string>()) : '\0',
         .heading = values["heading"].as<std::string>() == "auto"
                        ? std::nullopt
                        : std::optional(parse_yes_or_no(values["heading"].as<std::string>())),
         .image = values.count("shape") ? parse_shape(values["shape"].as<std::string>()) : Shape{},
         .statistics = statistics});
  }
  if (format == "idx") return data::prepare_idx(inputs, out, statistics);
  if (format == "cifar") {
    return data::prepare_cifar(
        inputs, out, {.label_bytes = 0, .coarse = values.count("coarse") > 0, .statistics = statistics});
  }
  if (format == "text") return data::prepare_text(inputs, out);
  throw UsageError("prepare: unknown format '{}'; use csv, idx, cifar or text", format);
}

}  // namespace

ExitCode prepare(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "prepare csv|idx|cifar|text INPUT... --out DATA.h5",
                    "Converts files, which may be gzipped, to one HDF5 data file. csv: one sample per\n"
                    "line; idx: the format of MNIST; cifar: the binary version of CIFAR; text: one\n"
                    "token per byte. h5py can write data files as well (see docs/data.md):\n"
                    "  import h5py\n"
                    "  with h5py.File(\"my-images.h5\", \"w\") as f:\n"
                    "      f[\"x\"] = images  # images [N, C, H, W] or a table [N, F]\n"
                    "      f[\"x\"].attrs[\"mean\"] = images.mean(axis=(0, 2, 3))\n"
                    "      f[\"x\"].attrs[\"std\"] = images.std(axis=(0, 2, 3))\n"
                    "      f[\"y\"] = labels  # integers [N], 0 or more\n"
                    "  with h5py.File(\"my-text.h5\", \"w\") as f:\n"
                    "      f[\"tokens\"] = tokens  # numpy.uint16 or uint32 [N]\n"
                    "      f[\"tokens\"].attrs[\"vocabulary\"] = 256");
  options.add()("out", po::value<std::string>(), "data file to write");
  options.add()("force", "replace the data file if it exists");
  options.add()("shape", po::value<std::string>(), "csv: shape C,H,W of an image");
  options.add()("label", po::value<std::string>()->default_value("last"),
                "csv: column of the label: last, first, a name or a number from 1");
  options.add()("separator", po::value<std::string>(),
                "csv: comma, semicolon or tab; default: detected from line 1");
  options.add()("heading", po::value<std::string>()->default_value("auto"),
                "csv: whether line 1 is a heading: yes, no or auto");
  options.add()("coarse", "cifar: use the 20 coarse labels of CIFAR-100");
  options.add()("statistics", po::value<std::string>(),
                "data file to take mean, std, type and class names from, such as the training data");
  options.positional("format");
  options.positional("input", -1);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  on_rank_0(session, [&] {
    const std::string format =
        options.required(values, "format", "the format is missing: csv, idx, cifar or text");
    options.required(values, "input", "the input files are missing");
    if (values.count("out") == 0) throw UsageError("prepare: --out DATA.h5 is missing");
    const std::string out = values["out"].as<std::string>();
    const data::Prepared summary =
        run(values, format, values["input"].as<Arguments>(), {out, values.count("force") > 0});
    for (const std::string& note : summary.notes) session.log().info("{}", note);
    for (const std::string& warning : summary.warnings) session.log().warning("{}: {}", out, warning);
    if (format == "text") {
      fmt::print("{}: {} tokens, vocabulary {}\n", out, summary.samples, summary.classes);
    } else {
      if (format == "csv" && values.count("shape") == 0) {
        fmt::print("{}: {} samples of {} ({}), {} classes\n", out, summary.samples,
                   pluralized(summary.image.numel(), "number"), summary.element_type, summary.classes);
      } else {
        fmt::print("{}: {} images {} {}, {} classes\n", out, summary.samples, to_string(summary.image),
                   summary.element_type, summary.classes);
      }
      if (!summary.class_names.empty())
        fmt::print("classes: {}\n", on_one_line(numbered(summary.class_names)));
      if (summary.one_label)
        session.log().warning("{}: all samples have the same label{}", out,
                              format == "csv" ? "; select its column with --label" : "");
    }
  });
  return ExitCode::done;
}

}  // namespace lockstep::cli
