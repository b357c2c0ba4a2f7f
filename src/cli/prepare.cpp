// lockstep prepare: converts csv, idx, cifar or text files, or pictures, to a data file.
#include <fmt/format.h>

#include <algorithm>
#include <array>
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

char parse_decimal(const std::string& text) {
  if (text == "point" || text == "comma") return text == "point" ? '.' : ',';
  throw UsageError("--decimal {}: must be point or comma", text);
}

/// The columns in an option: "a,b", of which a name with a comma is in double quotes.
std::vector<std::string> parse_columns(const po::variables_map& values, const char* option) {
  std::vector<std::string> columns;
  if (values.count(option) == 0) return columns;
  bool quoted = false;
  columns.emplace_back();
  for (const char c : values[option].as<std::string>()) {
    if (c == '"')
      quoted = !quoted;
    else if (c == ',' && !quoted)
      columns.emplace_back();
    else
      columns.back() += c;
  }
  if (std::ranges::count(columns, "") > 0) throw UsageError("--{}: names a column without a name", option);
  return columns;
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
    const std::string heading = values["heading"].as<std::string>();
    data::CsvOptions options{.label = values["label"].as<std::string>(),
                             .statistics = statistics,
                             .target = option_text(values, "target").value_or(""),
                             .categorical = parse_columns(values, "categorical"),
                             .dates = parse_columns(values, "date"),
                             .drop = parse_columns(values, "drop"),
                             .missing = parse_columns(values, "missing"),
                             .eval_fraction = values["eval-fraction"].as<double>(),
                             .unknown_as_missing = unknown_as_missing(values)};
    if (const auto text = option_text(values, "separator")) options.separator = parse_separator(*text);
    if (const auto text = option_text(values, "decimal")) options.decimal = parse_decimal(*text);
    if (heading != "auto") options.heading = parse_yes_or_no(heading);
    if (const auto text = option_text(values, "shape")) options.image = parse_shape(*text);
    return data::prepare_csv(inputs, out, options);
  }
  if (format == "idx") return data::prepare_idx(inputs, out, statistics);
  if (format == "cifar") {
    return data::prepare_cifar(
        inputs, out, {.label_bytes = 0, .coarse = values.count("coarse") > 0, .statistics = statistics});
  }
  if (format == "text") return data::prepare_text(inputs, out);
  throw UsageError("prepare: unknown format '{}'; use csv, idx, cifar, images or text", format);
}

struct Format {
  const char *name, *summary;
};
constexpr std::array formats{Format{"csv", "tables: numbers and a label, or what options say of columns"},
                             Format{"idx", "the format of MNIST"},
                             Format{"cifar", "the binary version of CIFAR"},
                             Format{"images", "a folder of JPEG and PNG files, a sub-folder per class"},
                             Format{"text", "text files and folders of them: one token per byte"}};

/// Adds the options of a format, or of all.
void add_options(OptionSet& options, std::string_view format) {
  const bool all = format == "all", table = all || format == "csv", pictures = all || format == "images";
  options.add()("out", po::value<std::string>(), "data file to write");
  options.add()("force", "replace the data file if it exists");
  if (table) {
    options.add()("label", po::value<std::string>()->default_value("last"),
                  "column of classes: last, first, name, number; none");
    options.add()("target", po::value<std::string>(), "column to predict: values, or names of classes");
    options.add()("categorical", po::value<std::string>(), "columns that are one-hot, or A=code: /codes");
    options.add()("date", po::value<std::string>(), "columns of dates: seconds, and A=sines of them");
    options.add()("drop", po::value<std::string>(), "columns to leave out");
    options.add()("missing", po::value<std::string>(), "drop, mean, median or value; of columns: A=KIND");
    options.add()("eval-fraction", po::value<double>()->default_value(0),
                  "share of lines for DATA-eval.h5, not learned from");
    options.add()("unknown", po::value<std::string>(), "as-missing: of categories that training lacks");
    options.add()("separator", po::value<std::string>(), "comma, semicolon or tab; else line 1 tells");
    options.add()("decimal", po::value<std::string>(), "point or comma; else the numbers tell");
    options.add()("heading", po::value<std::string>()->default_value("auto"),
                  "whether line 1 is a heading: yes, no or auto");
    options.add()("shape", po::value<std::string>(), "C,H,W, if the values are an image");
  }
  if (all || format == "cifar") options.add()("coarse", "use the 20 coarse labels of CIFAR-100");
  if (pictures) {
    options.add()("encode", po::value<std::string>()->default_value("keep"),
                  "keep, jpeg (quality 95) or raw pixels");
    options.add()("size", po::value<std::int64_t>()->default_value(0),
                  "pixels: jpeg, shorter side; raw, a square");
    options.add()("files", po::value<int>()->default_value(0), "files to write; 0: one per GiB");
    options.add()("labels", po::value<std::string>(), "CSV file of picture and label");
    options.add()("skip-bad", "leave out pictures that cannot be decoded");
  }
  if (all || (format != "text" && !format.empty()))
    options.add()("statistics", po::value<std::string>(),
                  format == "images" ? "take class names of this data file"
                  : format == "csv"  ? "take columns, fills, mean, std, class names of this\ndata file"
                                     : "take mean, std, type, class names of this data file");
}

}  // namespace

ExitCode prepare(const Program& program, Session& session, const Arguments& arguments) {
  const auto given = [&](const char* word) { return std::ranges::find(arguments, word) != arguments.end(); };
  // The help of a format has its options; a command may have any, which are checked below.
  const bool helps = given("--help") || given("-h");
  std::string usage, text, shown = helps ? "" : "all";
  for (const Format& format : formats) {
    if (helps && given(format.name)) shown = format.name;
    usage += fmt::format("{}{}", usage.empty() ? "" : "|", format.name);
    text += fmt::format("  {:<11} {}\n", format.name, format.summary);
  }
  const bool all = shown.empty() || shown == "all";
  if (!all) text = std::ranges::find(formats, shown, &Format::name)->summary;
  OptionSet options(
      program, fmt::format("prepare {} INPUT... --out DATA.h5", all ? usage : shown),
      "Converts files, which may be gzipped, to one HDF5 data file:\n" + text +
          (all ? program.name + " prepare NAME --help describes a format; see also docs/data.md." : ""));
  add_options(options, shown);
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
      of_others{"shape", "label", "separator", "heading", "coarse"},
      of_tables{"target", "categorical", "date", "drop", "missing", "eval-fraction", "unknown", "decimal"};
  const auto refuse = [&](const Names& names, const char* what) {
    for (const char* const name : names)
      if (values.count(name) > 0 && !values[name].defaulted())
        throw UsageError("prepare {}: --{} is {}", format, name, what);
  };
  format == "images" ? refuse(of_others, "not for images") : refuse(of_pictures, "for images");
  if (format != "csv") refuse(of_tables, "for csv");
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
        fmt::print("{}: {} samples of {} ({}){}\n", out, summary.samples,
                   pluralized(summary.image.numel(), "number"), summary.element_type,
                   summary.classes > 0      ? fmt::format(", {} classes", summary.classes)
                   : summary.target.empty() ? ""
                                            : fmt::format(", target {}", on_one_line(summary.target)));
        if (summary.held_out > 0)
          fmt::print("{}: {} samples, held out\n", data::held_out_path(out), summary.held_out);
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
