// lockstep prepare: csv, idx, cifar or text files become a data file.
#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "cli/verb.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/prepare.h"

namespace lockstep::cli {
namespace {

/// "1,8,8" -> [1, 8, 8]
Shape parse_shape(const std::string& text) {
  std::vector<std::int64_t> extents;
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    const auto [next, error] = std::from_chars(at, end, extents.emplace_back());
    if (error != std::errc() || (next != end && (*next != ',' || next + 1 == end)) || extents.back() < 1) {
      throw UsageError("--shape {}: write it as C,H,W", text);
    }
    at = next + 1;
  }
  if (extents.size() != 3) throw UsageError("--shape {}: write it as C,H,W", text);
  return Shape(extents);
}

data::Prepared run(const po::variables_map& values, const std::string& format, const Arguments& inputs,
                   const data::Output& out) {
  const data::Statistics statistics{values.count("statistics") ? values["statistics"].as<std::string>() : ""};
  if (format == "csv") {
    const std::string label = values["label"].as<std::string>();
    if (label != "last" && label != "first") throw UsageError("--label {}: is neither last nor first", label);
    return data::prepare_csv(
        inputs, out,
        {.label = label == "last" ? data::CsvOptions::Label::last : data::CsvOptions::Label::first,
         .image = values.count("shape") ? parse_shape(values["shape"].as<std::string>()) : Shape{},
         .statistics = statistics});
  }
  if (format == "idx") return data::prepare_idx(inputs, out, statistics);
  if (format == "cifar") {
    return data::prepare_cifar(
        inputs, out, {.label_bytes = 0, .coarse = values.count("coarse") > 0, .statistics = statistics});
  }
  if (format == "text") return data::prepare_text(inputs, out);
  throw UsageError("prepare: unknown format '{}'; one of csv, idx, cifar, text", format);
}

}  // namespace

ExitCode prepare(Session& session, const Arguments& arguments) {
  OptionSet options("prepare csv|idx|cifar|text INPUT... --out DATA.h5",
                    "Turns files into one HDF5 data file; inputs may be gzipped. csv: a sample a\n"
                    "line, the label last; idx: MNIST's images and labels; cifar: the binary version;\n"
                    "text: files or folders, a byte a token.");
  options.add()("out", po::value<std::string>(), "the data file to write");
  options.add()("force", "replace the data file if it is there already");
  options.add()("shape", po::value<std::string>(), "csv: C,H,W of an image");
  options.add()("label", po::value<std::string>()->default_value("last"),
                "csv: which column is the label, last or first");
  options.add()("coarse", "cifar: the 20 coarse labels of CIFAR-100");
  options.add()("statistics", po::value<std::string>(),
                "take mean and std from this data file, not from the images");
  options.positional("format");
  options.positional("input", -1);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  comm::together(session.world(), [&] {
    if (session.world().rank() != 0) return;
    const std::string format =
        required(values, "format", "prepare: say what the inputs are: csv, idx, cifar or text");
    required(values, "input", "prepare: the files to read are missing; see lockstep prepare --help");
    if (values.count("out") == 0) throw UsageError("prepare: --out DATA.h5 is missing");
    const std::string out = values["out"].as<std::string>();
    const data::Prepared made =
        run(values, format, values["input"].as<Arguments>(), {out, values.count("force") > 0});
    for (const std::string& place : made.skipped) {
      format == "text" ? session.log().info("skipped {}: no text", place)
                       : session.log().info("{} is a heading, skipped", place);
    }
    if (format == "text") {
      fmt::print("{}: {} tokens of a vocabulary of {}\n", out, made.samples, made.classes);
    } else {
      const bool flat = format == "csv" && values.count("shape") == 0;
      fmt::print("{}: {} images {} {}, {} classes{}\n", out, made.samples, to_string(made.image),
                 made.element_type, made.classes,
                 flat ? " (--shape C,H,W was not given: every value is a channel of its own)" : "");
      if (made.one_label)
        session.log().warning("{}: every image has the same label{}", out,
                              format == "csv" ? "; which column is it (--label)?" : "");
    }
  });
  return ExitCode::done;
}

}  // namespace lockstep::cli
