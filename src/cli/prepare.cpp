// lockstep prepare: converts csv, idx, cifar or text files, or pictures, to a data file.
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

/// Of `prepare images`, which all ranks share.
void prepare_pictures(const po::variables_map& values, Session& session, const Arguments& folders,
                      const data::Output& out) {
  if (folders.size() != 1) throw UsageError("prepare images: takes one folder, not {}", folders.size());
  data::PackOptions how{.size = values["size"].as<std::int64_t>(), .files = values["files"].as<int>()};
  how.pictures.skip_bad = values.count("skip-bad") > 0;
  how.encode = option::named<data::PackOptions::Encode>(values["encode"].as<std::string>());
  if (values.count("statistics")) how.statistics = values["statistics"].as<std::string>();
  if (values.count("labels")) how.pictures.labels = values["labels"].as<std::string>();
  const data::Prepared prepared = data::prepare_pictures(folders.front(), out, how, session.world());
  for (const std::string& note : prepared.notes) session.log().info("{}", note);
  for (const std::string& warning : prepared.warnings) session.log().warning("{}", warning);
  if (session.world().rank() == 0)
    fmt::print("{}: {} pictures{}\n", prepared.path, prepared.samples,
               prepared.classes > 0 ? fmt::format(", {} classes", prepared.classes) : "");
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
  throw UsageError("prepare: unknown format '{}'; use csv, idx, cifar, images or text", format);
}

}  // namespace

ExitCode prepare(const Program& program, Session& session, const Arguments& arguments) {
  OptionSet options(program, "prepare csv|idx|cifar|images|text INPUT... --out DATA.h5",
                    "Converts files, which may be gzipped, to one HDF5 data file. csv: one sample per\n"
                    "line; idx: the format of MNIST; cifar: the binary version of CIFAR; images: a\n"
                    "folder of JPEG and PNG files, a sub-folder per class; text: one token per byte.\n"
                    "h5py can write data files as well: see the manual page, and docs/data.md.");
  options.add()("out", po::value<std::string>(), "data file to write");
  options.add()("force", "replace the data file if it exists");
  options.add()("shape", po::value<std::string>(), "csv: shape C,H,W of an image");
  options.add()("label", po::value<std::string>()->default_value("last"),
                "csv: the label's column: last, first, name or number");
  options.add()("separator", po::value<std::string>(), "csv: comma, semicolon or tab; else line 1 tells");
  options.add()("heading", po::value<std::string>()->default_value("auto"),
                "csv: whether line 1 is a heading: yes, no or auto");
  options.add()("coarse", "cifar: use the 20 coarse labels of CIFAR-100");
  options.add()("encode", po::value<std::string>()->default_value("keep"),
                "images: keep, jpeg (quality 95) or raw pixels");
  options.add()("size", po::value<std::int64_t>()->default_value(0),
                "images: pixels: jpeg, shorter side; raw, a square");
  options.add()("files", po::value<int>()->default_value(0), "images: files to write; 0: one per GiB");
  options.add()("labels", po::value<std::string>(), "images: CSV file of picture and label");
  options.add()("skip-bad", "images: leave out pictures that cannot be decoded");
  options.add()("statistics", po::value<std::string>(),
                "take mean, std, type, class names of this data\nfile; images: class names only");
  options.positional("format");
  options.positional("input", -1);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const std::string format =
      options.required(values, "format", "the format is missing: csv, idx, cifar, images or text");
  if (values.count("input") == 0) throw options.error("the input files are missing");
  if (values.count("out") == 0) throw UsageError("prepare: --out DATA.h5 is missing");
  const std::string out = values["out"].as<std::string>();
  const data::Output output{out, values.count("force") > 0};
  const Arguments inputs = values["input"].as<Arguments>();
  using Names = std::vector<const char*>;
  const Names of_pictures{"encode", "size", "files", "labels", "skip-bad"},
      of_others{"shape", "label", "separator", "heading", "coarse"};
  for (const char* const name : format == "images" ? of_others : of_pictures)
    if (values.count(name) > 0 && !values[name].defaulted())
      throw UsageError("prepare {}: --{} is {} images", format, name, format == "images" ? "not for" : "for");
  if (format == "images") {
    prepare_pictures(values, session, inputs, output);
    return ExitCode::done;
  }
  on_rank_0(session, [&] {
    const data::Prepared summary = run(values, format, inputs, output);
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
