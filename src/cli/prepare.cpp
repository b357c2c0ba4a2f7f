// lockstep prepare: converts csv, idx, cifar or text files, or pictures, to a data file.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

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

template <class T>
T parse_number(const po::variables_map& values, const char* option) {
  T number{};
  if (const auto text = values[option].as<std::string>(); !lockstep::parse_number(text, number))
    throw UsageError("--{} {}: must be a number", option, quote(text));
  return number;
}

/// The columns in an option: "a,b". A name with a comma or quotes is in double quotes, and a quote inside is
/// two.
std::vector<std::string> parse_columns(const po::variables_map& values, const char* option) {
  std::vector<std::string> columns;
  if (values.count(option) == 0) return columns;
  bool is_quoted = false;
  char before = '\0';
  columns.emplace_back();
  for (const char c : values[option].as<std::string>()) {
    if (c == '"') is_quoted = !is_quoted;
    if (c == ',' && !is_quoted)
      columns.emplace_back();
    else if (c != '"' || (is_quoted && before == '"'))
      columns.back() += c;
    before = c;
  }
  if (is_quoted || std::ranges::count(columns, "") > 0)
    throw UsageError("--{}: {}", option,
                     is_quoted ? "a quote without its end" : "names a column without a name");
  return columns;
}

/// "0 setosa, 1 versicolor, ..."
std::string numbered(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += fmt::format("{}{} {}", i == 0 ? "" : ", ", i, names[i]);
  return text;
}

data::TextPreparation text_preparation(const po::variables_map& values) {
  data::TextPreparation how{.tokenizer = option_text(values, "tokenizer").value_or("bytes"),
                            .end_of_document = option_text(values, "end-of-document").value_or(""),
                            .field = option_text(values, "field").value_or("")};
  if (values.count("train-tokenizer")) {
    if (values.count("tokenizer"))
      throw UsageError("prepare text: takes --tokenizer or --train-tokenizer, not both");
    how.train = parse_number<std::int64_t>(values, "train-tokenizer");
    if (how.train == 0) throw UsageError("--train-tokenizer 0: must be above 256");
  }
  return how;
}

/// Of `prepare images`, which all ranks share.
void prepare_pictures(const po::variables_map& values, Session& session, const Arguments& folders,
                      const data::Output& out) {
  if (folders.size() != 1) throw UsageError("prepare images: takes one folder, not {}", folders.size());
  data::PackOptions how{.size = parse_number<std::int64_t>(values, "size"),
                        .files = parse_number<int>(values, "files")};
  how.pictures.skip_bad = values.count("skip-bad") > 0;
  how.encode = option::named<data::PackOptions::Encode>(values["encode"].as<std::string>());
  if (values.count("statistics")) how.statistics = values["statistics"].as<std::string>();
  if (values.count("labels")) how.pictures.labels = values["labels"].as<std::string>();
  const data::Summary summary = data::prepare_pictures(folders.front(), out, how, session.world());
  for (const std::string& note : summary.notes) session.log().info("{}", note);
  for (const std::string& warning : summary.warnings) session.log().warning("{}", warning);
  if (session.world().rank() == 0)
    print_line(fmt::format("{}: {} pictures{}", summary.path, summary.samples,
                           summary.classes > 0 ? fmt::format(", {} classes", summary.classes) : ""));
}

void print_text(const data::Summary& summary, const std::string& out, Session& session) {
  for (const std::string& note : summary.notes) session.log().info("{}", note);
  if (session.world().rank() == 0)
    print_line(fmt::format(
        "{}: {} tokens, vocabulary {}{}", out, summary.samples, summary.classes,
        summary.documents > 0 ? fmt::format(", {}", pluralized(summary.documents, "document")) : ""));
}

data::Summary run(const po::variables_map& values, const std::string& format, const Arguments& inputs,
                  const data::Output& out, const data::Tokenizers& tokenizers) {
  const std::string statistics = values.count("statistics") ? values["statistics"].as<std::string>() : "";
  if (format == "csv") {
    data::CsvOptions options{.label = values["label"].as<std::string>(),
                             .statistics = statistics,
                             .target = option_text(values, "target").value_or(""),
                             .categorical = parse_columns(values, "categorical"),
                             .dates = parse_columns(values, "date"),
                             .drop = parse_columns(values, "drop"),
                             .missing = parse_columns(values, "missing"),
                             .eval_fraction = parse_number<double>(values, "eval-fraction"),
                             .unknown_as_missing = unknown_as_missing(values)};
    if (const auto text = option_text(values, "separator")) options.separator = parse_separator(*text);
    if (const auto text = option_text(values, "decimal")) {
      if (*text != "point" && *text != "comma")
        throw UsageError("--decimal {}: must be point or comma", *text);
      options.decimal = *text == "point" ? '.' : ',';
    }
    if (const std::string heading = values["heading"].as<std::string>(); heading != "auto") {
      if (heading != "yes" && heading != "no")
        throw UsageError("--heading {}: must be yes, no or auto", heading);
      options.heading = heading == "yes";
    }
    if (const auto text = option_text(values, "shape")) options.image = parse_shape(*text);
    return data::prepare_csv(inputs, out, options);
  }
  if (format == "idx") return data::prepare_idx(inputs, out, statistics);
  if (format == "cifar") {
    return data::prepare_cifar(
        inputs, out, {.label_bytes = 0, .coarse = values.count("coarse") > 0, .statistics = statistics});
  }
  if (values.count("tokenizer") == 0)
    throw UsageError("prepare tokens: --tokenizer is missing: whose tokens are they?");
  return data::prepare_tokens(inputs, out, option_text(values, "dtype").value_or(""),
                              text_preparation(values), tokenizers);
}

struct Format {
  const char *name, *summary;
};
constexpr std::array formats{Format{"csv", "tables: numbers and a label, or what options say of columns"},
                             Format{"idx", "the format of MNIST"},
                             Format{"cifar", "the binary version of CIFAR"},
                             Format{"images", "a folder of JPEG and PNG files, a sub-folder per class"},
                             Format{"text", "text files and folders of them, or JSON lines"},
                             Format{"tokens", "files of tokens of nanoGPT or llm.c"}};

/// An option of some formats; one of several may have another help in each.
struct FormatOption {
  std::string_view formats;
  const char *name, *initial;  // initial: its value if it is absent; "": none; null: it takes no value
  const char* help;
};
constexpr std::string_view every = "csv, idx, cifar, images, text, tokens";
constexpr FormatOption format_options[]{
    {every, "out", "", "data file to write"},
    {every, "force", nullptr, "replace the data file if it exists"},
    {"csv", "label", "last", "column of classes: last, first, name, number; none"},
    {"csv", "target", "", "column to predict: values, or names of classes"},
    {"csv", "categorical", "", "columns that are one-hot, or A=code: /codes"},
    {"csv", "date", "", "columns of dates: seconds, and A=sines of them"},
    {"csv", "drop", "", "columns to leave out"},
    {"csv", "missing", "", "drop, mean, median or value; of columns: A=KIND"},
    {"csv", "eval-fraction", "0", "share of lines for DATA-eval.h5, not learned from"},
    {"csv", "unknown", "", "as-missing: of categories that training lacks"},
    {"csv", "separator", "", "comma, semicolon or tab; else line 1 tells"},
    {"csv", "decimal", "", "point or comma; else the numbers tell"},
    {"csv", "heading", "auto", "whether line 1 is a heading: yes, no or auto"},
    {"csv", "shape", "", "C,H,W, if the values are an image"},
    {"cifar", "coarse", nullptr, "use the 20 coarse labels of CIFAR-100"},
    {"images", "encode", "keep", "keep, jpeg (quality 95) or raw pixels"},
    {"images", "size", "0", "pixels: jpeg, shorter side; raw, a square"},
    {"images", "files", "0", "files to write; 0: one per GiB"},
    {"images", "labels", "", "CSV file of picture and label"},
    {"images", "skip-bad", nullptr, "leave out pictures that cannot be decoded"},
    {"images", "statistics", "", "take class names of this data file"},
    {"text, tokens", "tokenizer", "",
     "bytes, or tokenizer.json, a folder with it or with\nvocab.json and merges.txt, or a data file"},
    {"text", "train-tokenizer", "", "learns one of so many tokens from the text"},
    {"text, tokens", "end-of-document", "",
     "token at the end of each document; else\n<|endoftext|>, or what the tokenizer has"},
    {"text", "field", "", "inputs are JSON lines: the field with the text"},
    {"tokens", "dtype", "", "uint16, uint32 or int64; llm.c's header tells"},
    {"csv", "statistics", "", "take columns, fills, mean, std, class names of this\ndata file"},
    {"idx, cifar", "statistics", "", "take mean, std, type, class names of this data file"}};

}  // namespace

ExitCode prepare(const Program& program, Session& session, const Arguments& arguments) {
  const auto has_word = [&](const char* word) {
    return std::ranges::find(arguments, word) != arguments.end();
  };
  // The help of a format has its options; a command may have any, which are checked below.
  const bool helps = has_word("--help") || has_word("-h");
  std::string names, text, shown;
  for (const Format& format : formats) {
    if (helps && has_word(format.name)) shown = format.name;
    names += fmt::format("{}{}", names.empty() ? "" : "|", format.name);
    text += fmt::format("  {:<11} {}\n", format.name, format.summary);
  }
  if (!shown.empty()) text = std::ranges::find(formats, shown, &Format::name)->summary;
  OptionSet options(
      program, fmt::format("prepare {} INPUT... --out DATA.h5", shown.empty() ? names : shown),
      "Converts files, which may be gzipped, to one HDF5 data file:\n" + text +
          (shown.empty() ? program.name + " prepare NAME --help describes a format; see also docs/data.md."
                         : ""));
  std::map<std::string_view, std::string> formats_of;  // by the name of an option
  for (const FormatOption& one : format_options) {
    const bool is_shown =
        !helps || (shown.empty() ? one.formats == every : one.formats.find(shown) != one.formats.npos);
    if (is_shown)
      formats_of[one.name] += fmt::format("{}{}", formats_of[one.name].empty() ? "" : ", ", one.formats);
    if (!is_shown || formats_of[one.name] != one.formats) continue;  // another has added it
    if (!one.initial)
      options.add()(one.name, one.help);
    else if (!*one.initial)
      options.add()(one.name, po::value<std::string>(), one.help);
    else
      options.add()(one.name, po::value<std::string>()->default_value(one.initial), one.help);
  }
  options.positional("format");
  options.positional("input", -1);
  po::variables_map values;
  if (!options.parse(session, arguments, values)) return ExitCode::done;
  const std::string format =
      options.required(values, "format", "the format is missing: csv, idx, cifar, images, text or tokens");
  if (std::ranges::find(formats, format, &Format::name) == formats.end())
    throw UsageError("prepare: unknown format '{}'; use csv, idx, cifar, images, text or tokens", format);
  if (values.count("input") == 0) throw options.error("the input files are missing");
  if (values.count("out") == 0) throw UsageError("prepare: --out DATA.h5 is missing");
  const std::string out = values["out"].as<std::string>();
  const data::Output output{out, values.count("force") > 0};
  const Arguments inputs = values["input"].as<Arguments>();
  for (const auto& [name, of] : formats_of)
    if (const po::variable_value& value = values[std::string(name)];
        !value.empty() && !value.defaulted() && of.find(format) == std::string::npos)
      throw UsageError("prepare {}: --{} is for {}", format, name, of);
  if (format == "images") {
    prepare_pictures(values, session, inputs, output);
    return ExitCode::done;
  }
  const data::Tokenizers& tokenizers = program.registries.tokenizers;
  if (format == "text") {
    print_text(data::prepare_text(inputs, output, text_preparation(values), tokenizers, session.world()), out,
               session);
    return ExitCode::done;
  }
  on_rank_0(session, [&] {
    const data::Summary summary = run(values, format, inputs, output, tokenizers);
    if (format == "tokens") return print_text(summary, out, session);
    for (const std::string& note : summary.notes) session.log().info("{}", note);
    for (const std::string& warning : summary.warnings) session.log().warning("{}: {}", out, warning);
    if (format == "csv" && values.count("shape") == 0) {
      print_line(fmt::format("{}: {} samples of {} ({}){}", out, summary.samples,
                             pluralized(summary.image.numel(), "number"), summary.element_type,
                             summary.classes > 0      ? fmt::format(", {} classes", summary.classes)
                             : summary.target.empty() ? ""
                                                      : fmt::format(", target {}", summary.target)));
      if (summary.held_out > 0)
        print_line(fmt::format("{}: {} samples, held out", data::held_out_path(out), summary.held_out));
    } else {
      print_line(fmt::format("{}: {} images {} {}, {} classes", out, summary.samples,
                             to_string(summary.image), summary.element_type, summary.classes));
    }
    if (!summary.class_names.empty()) print_line(fmt::format("classes: {}", numbered(summary.class_names)));
    if (summary.one_label)
      session.log().warning("{}: all samples have the same label{}", out,
                            format == "csv" ? "; select its column with --label" : "");
  });
  return ExitCode::done;
}

}  // namespace lockstep::cli
