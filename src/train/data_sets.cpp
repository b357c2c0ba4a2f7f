#include "train/data_sets.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <iterator>

#include "base/files.h"
#include "base/lines.h"
#include "base/text.h"
#include "checkpoint/blocks.h"
#include "checkpoint/layout.h"
#include "data/data_file.h"
#include "data/finite.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/images.h"
#include "lockstep/data/text.h"
#include "lockstep/hdf5/file.h"
#include "lockstep/tasks/built_in.h"
#include "train/run_logs.h"

namespace lockstep::train {
namespace {

constexpr std::string_view normalization_prefix = "data/";
// Of /data/FIELD.
constexpr std::string_view type_attribute = "dtype", largest_attribute = "largest", units_attribute = "units",
                           packing_attribute = "packing", classes_attribute = "classes",
                           names_attribute = "names";

/// DataError for a missing file, with the key that names it and what to do.
void check_present(const char* key, const std::string& path) {
  if (exists(path) || errno == EACCES) return;  // which opening it says
  throw DataError(
      "{}: {}: No such file; lockstep prepare makes data files, and paths are relative to the folder where "
      "lockstep is started",
      key, path);
}

/// /x and /y are what lockstep prepare makes of images: numbers [N, C, H, W] or [N, F], and integers [N].
/// DataError if classification would take images for arrays because of a shape: it would read other numbers.
bool holds_images(const Config& config, const hdf5::File& file) {
  for (const char* const name : {"x", "y"})
    if (file.kind(name) != hdf5::ObjectKind::dataset) return false;
  const hdf5::Dataset x = file.open_dataset("x"), y = file.open_dataset("y");
  const std::size_t rank = x.shape().size();
  if (!data::is_integers(y)) return false;
  if (x.dtype() && (rank == 4 || rank == 2) && y.shape().size() == 1) return true;
  const bool scaled = x.dtype() == DType::uint8 || x.has_attribute("mean") || x.has_attribute("std");
  if (!scaled || !config.task.options_of<tasks::Classification>()) return false;
  constexpr const char* otherwise = "data.format = arrays takes both as they are stored";
  if (rank == 3 && y.shape().size() == 1)
    throw DataError("{}: /x is {} [{}]: images are [N, C, H, W], so store x[:, None]; {}", file.file_path(),
                    x.type_name(), fmt::join(x.shape(), ", "), otherwise);
  if (y.shape().size() == 2 && y.shape()[1] == 1)
    throw DataError("{}: /y is {} [{}]: labels of images are [N], so store y[:, 0]; {}", file.file_path(),
                    y.type_name(), fmt::join(y.shape(), ", "), otherwise);
  return false;
}

/// A data set of the program, not one of the built-in ones.
bool is_custom(const Config& config) {
  return config.registries && config.registries->data.has(config.data.format);
}

void check_format(const Config& config) {
  if (is_custom(config)) return;
  std::vector<std::string> words{"auto", "images", "text", "arrays"};
  if (config.registries) std::ranges::copy(config.registries->data.names(), std::back_inserter(words));
  try {
    option::check_word(config.data.format, words);
  } catch (const UsageError& error) {
    throw UsageError("data.format: {}", error.what());
  }
}

/// images, text or arrays: what data.format = auto means for data of which this is the first file.
std::string format_of(const Config& config, const models::Model& model, const std::string& path) {
  if (!config.data.format.empty()) {
    check_format(config);
    return config.data.format;
  }
  if (!config.data.fields.empty() || !config.data.normalize.empty()) return "arrays";
  if (model.context() > 0) return "text";
  const hdf5::File file = hdf5::File::open(path);
  if (holds_images(config, file)) return "images";
  // A model that names its input x takes images, unless the file has another /x and /y.
  const bool lacks_images = !file.exists("x") || !file.exists("y");
  return lacks_images && model.sample_shape().rank() > 0 ? "images" : "arrays";
}

std::unique_ptr<data::Dataset> open_text(const models::Model& model, const std::vector<std::string>& paths) {
  if (model.context() == 0)
    throw UsageError("data.format = text: model.name names a model that does not read text");
  auto text = std::make_unique<data::Text>(paths, model.context());
  if (model.classes() > 0 && text->vocabulary() > model.classes()) {
    throw DataError("{}: a vocabulary of {} tokens; the model has model.vocab = {}", text->name(),
                    text->vocabulary(), model.classes());
  }
  return text;
}

/// Those of data.fields whose arrays the file has; all of them if it has none.
std::vector<std::string> fields_in(const std::string& path, const std::vector<std::string>& fields) {
  const hdf5::File file = hdf5::File::open(path);
  std::vector<std::string> found;
  std::ranges::copy_if(fields, std::back_inserter(found), [&](const std::string& word) {
    return file.exists(word.substr(word.find(':') + 1));  // all of it if it has no colon
  });
  return found.empty() ? fields : found;
}

bool has_field(const data::Dataset& dataset, std::string_view name) {
  return std::ranges::find(dataset.fields(), name, &data::Field::name) != dataset.fields().end();
}

/// Whether images need a field y: a task whose x alone is learned leaves that to the model.
bool needs_labels(const Config& config, const models::Model& model) {
  const std::vector<std::string> read = model.reads();
  return read.empty() || !takes_unit_range(config) || std::ranges::find(read, "y") != read.end();
}

/// like: images by whose mean and deviation these are normalised, or null. targets: false: fields that the
/// first file lacks are left out.
std::unique_ptr<data::Dataset> open_data(const std::string& format, const Config& config,
                                         const models::Model& model, const std::vector<std::string>& paths,
                                         const data::Dataset* like, bool targets = true) {
  if (is_custom(config)) return config.registries->data.configure(format).make(paths);
  if (format == "text") return open_text(model, paths);
  const bool has_classes = model.classes() > 0 && config.task.options_of<tasks::Classification>();
  if (format == "arrays") {
    const std::vector<std::string>& fields = config.data.fields;
    auto arrays = std::make_unique<data::Arrays>(
        paths, data::ArraysOptions{.fields = targets ? fields : fields_in(paths.front(), fields)});
    if (targets && has_classes && has_field(*arrays, "y")) arrays->check_labels("y", model.classes());
    return arrays;
  }
  auto images = std::make_unique<data::Images>(
      paths, data::ImagesOptions{.like = dynamic_cast<const data::Images*>(like),
                                 .labels = targets && needs_labels(config, model)});
  if (has_classes) images->check_labels(model.classes());
  return images;
}

/// Their number for each channel, for messages.
std::string text_of(const data::Normalization& by) {
  return fmt::format("{:.6g} and {:.6g}", fmt::join(by.mean, " "), fmt::join(by.deviation, " "));
}

/// Texts of a mixture have the same tokens.
void check_same_tokens(const data::Dataset& one, const data::Dataset& first) {
  const auto* const a = dynamic_cast<const data::Text*>(&one);
  const auto* const b = dynamic_cast<const data::Text*>(&first);
  if (!a || !b || (a->vocabulary() == b->vocabulary() && a->tokenizer() == b->tokenizer())) return;
  throw DataError("{}: vocabulary {} of tokenizer {}, but {} has {} of {}", a->name(), a->vocabulary(),
                  quote(a->tokenizer()), b->name(), b->vocabulary(), quote(b->tokenizer()));
}

}  // namespace

std::vector<TrainingFile> training_files(const DataConfig& config) {
  std::vector<TrainingFile> files;
  for (const std::string& word : config.train) {
    TrainingFile& file = files.emplace_back(TrainingFile{.path = word, .weight = {}});
    const std::size_t star = word.rfind('*');
    if (star == std::string::npos || exists(word)) continue;
    double weight = 0;
    const char* const end = word.data() + word.size();
    const auto [read_to, error] = std::from_chars(word.data() + star + 1, end, weight);
    if (read_to != end || (error != std::errc() && error != std::errc::result_out_of_range)) continue;
    if (error != std::errc() || !(weight > 0 && std::isfinite(weight)))
      throw UsageError("data.train: {}: the weight of a file is a number above 0", word);
    file = {.path = word.substr(0, star), .weight = weight};
  }
  return files;
}

const data::Normalization* LearnedFrom::normalization(const std::string& field) const {
  const auto found = fields.find(field);
  return found == fields.end() || !found->second.by ? nullptr : &*found->second.by;
}

LearnedFrom learned_from(const checkpoint::FileIndex& index) {
  LearnedFrom from{.name = index.path, .fields = {}};
  for (const checkpoint::GroupEntry& group : index.groups) {
    if (!checkpoint::is_data_group(group.path)) continue;
    data::FieldMeaning& meaning = from.fields[group.path.substr(normalization_prefix.size())];
    for (std::string* const file : {&meaning.scale.file, &meaning.classes.file, &meaning.names.file,
                                    &meaning.units.file, &meaning.packing.file})
      *file = index.path;
    if (!group.attributes.empty()) meaning.packing.value.emplace();  // earlier versions wrote none
    for (const auto& [name, value] : group.attributes) {
      const auto* const text = std::get_if<std::string>(&value);
      if (name == largest_attribute && std::holds_alternative<double>(value))
        meaning.scale.value.largest = std::get<double>(value);
      if (!text) continue;
      try {
        if (name == type_attribute) meaning.scale.value.dtype = dtype_named(*text);
      } catch (const UsageError& error) {
        throw DataError("{}: /{} is damaged: {}", index.path, group.path, error.what());
      }
      if (name == units_attribute) meaning.units.value = *text;
      if (name == packing_attribute) meaning.packing.value = *text;
      if (name == classes_attribute || name == names_attribute)
        for (const std::string_view line : lines_of(*text))
          (name == classes_attribute ? meaning.classes : meaning.names).value.emplace_back(line);
    }
  }
  for (const checkpoint::TensorEntry& entry : index.tensors) {
    if (!checkpoint::is_data_group(entry.group) || entry.dtype != DType::float64) continue;
    data::FieldMeaning& meaning = from.fields[entry.group.substr(normalization_prefix.size())];
    if (!meaning.by) meaning.by.emplace();
    std::vector<double>& values = entry.name == "mean" ? meaning.by->mean : meaning.by->deviation;
    values.resize(static_cast<std::size_t>(entry.shape.numel()));
    checkpoint::BlockReader(*index.file, entry, reinterpret_cast<std::byte*>(values.data())).finish();
  }
  return from;
}

void set_fields(Config& config, const models::Model& model, std::vector<std::string> fields) {
  std::string format = "arrays";
  try {
    format = format_of(config, model, config.data.train.empty() ? "" : training_files(config.data)[0].path);
  } catch (const DataError&) {  // the training data may be elsewhere
  }
  if (format != "arrays")
    throw UsageError("--fields: the data of the run are {}, which have none to name", format);
  config.data.fields = std::move(fields);
}

DataSets::DataSets(const Config& config, const models::Model& model) {
  if (config.data.train.empty() && !is_custom(config))
    throw UsageError("data.train: is missing; give an HDF5 data file (see lockstep prepare)");
  open_train(config, model);
  map_to_unit_range(config);
  add_normalized_fields(config.data.normalize);
  if (config.data.eval_fraction > 0) {
    for (Source& source : sources_)
      source.split.emplace(data::split(*source.whole, config.data.eval_fraction, config.train.seed));
  }
  eval_ = eval_file_.get();
  if (sources_.size() == 1) {
    train_ = &sources_[0].train();
    if (sources_[0].split) eval_ = &sources_[0].split->eval;
  } else {
    std::vector<data::Mixture::Source> train, eval;
    for (const Source& source : sources_) {
      train.push_back({.dataset = &source.train(), .weight = source.weight});
      if (source.split) eval.push_back({.dataset = &source.split->eval});
    }
    train_ = &train_mixture_.emplace(std::move(train), true);
    if (!eval.empty()) eval_ = &eval_mixture_.emplace(std::move(eval), false);
  }
  check_meanings();
  const std::int64_t samples = config.train.eval_samples;
  if (!eval_ || samples == 0 || samples >= eval_->size()) return;
  // Independent of the permutations of the epochs and of the split.
  const std::uint64_t seed = mix_bits(config.train.seed ^ purpose_of("eval_samples"));
  eval_part_.emplace(*eval_, 0, samples, data::Permutation(eval_->size(), seed, 0));
}

/// Without weights all files are one data set.
void DataSets::open_train(const Config& config, const models::Model& model) {
  const std::vector<TrainingFile> files = training_files(config.data);
  if (!config.data.format.empty()) check_format(config);
  if (!is_custom(config)) {  // whose files may be anything
    for (const TrainingFile& file : files) check_present("data.train", file.path);
    if (!config.data.eval.empty()) check_present("data.eval", config.data.eval);
  }
  format_ = format_of(config, model, files.empty() ? "" : files.front().path);
  const auto open = [&](const std::vector<std::string>& paths) {
    return open_data(format_, config, model, paths, sources_.empty() ? nullptr : sources_[0].whole.get());
  };
  if (std::ranges::any_of(files, [](const TrainingFile& file) { return file.weight.has_value(); })) {
    for (const TrainingFile& file : files) {
      auto whole = open({file.path});
      if (!sources_.empty()) check_same_tokens(*whole, *sources_[0].whole);
      sources_.push_back({.whole = std::move(whole), .split = {}, .weight = file.weight.value_or(1)});
    }
  } else {
    std::vector<std::string> paths;
    for (const TrainingFile& file : files) paths.push_back(file.path);
    sources_.push_back({.whole = open(paths), .split = {}});
  }
  if (!config.data.eval.empty()) eval_file_ = open({config.data.eval});
}

/// That the data to train on and those to evaluate on mean the same. Warns of packed values.
void DataSets::check_meanings() {
  std::map<std::string, data::FieldMeaning> known;
  std::vector<std::string> packed;
  for (const data::Dataset* const one : {train_, eval_}) {
    if (!one) continue;
    for (const data::Field& field : one->fields()) {
      const data::FieldMeaning meaning = one->meaning(field.name);
      known.try_emplace(field.name, meaning).first->second.merge(field.name, meaning);
    }
  }
  for (const auto& [field, meaning] : known)
    if (!meaning.packing.value.value_or("").empty())
      packed.push_back(fmt::format("{} ({})", field, meaning.packing.file));
  if (!packed.empty())
    warnings_.push_back(
        fmt::format("scale_factor and add_offset (netCDF) are not applied, values are as stored: {}",
                    fmt::join(packed, ", ")));
}

DataSets::DataSets(const Config& config, const models::Model& model, const std::string& eval_path,
                   const LearnedFrom& from, bool targets, bool own_statistics) {
  std::unique_ptr<data::Dataset> trained_on;
  std::string why_own;  // mean and deviation: what the training data have wrong
  const bool known = takes_unit_range(config) || own_statistics || from.normalization("x");
  if (!known && (config.data.format.empty() || config.data.format == "images")) {
    try {
      std::vector<std::string> paths;
      for (const TrainingFile& file : training_files(config.data)) paths.push_back(file.path);
      if (paths.empty()) throw UsageError("no image files were named");
      format_ = format_of(config, model, paths.front());
      if (format_ == "images") trained_on = open_data(format_, config, model, paths, nullptr);
    } catch (const Error& error) {  // the training data may be elsewhere
      format_ = format_of(config, model, eval_path);
      if (format_ == "images") why_own = error.what();
    }
  } else {
    format_ = format_of(config, model, eval_path);
  }
  eval_file_ = open_data(format_, config, model, {eval_path}, trained_on.get(), targets);
  eval_ = eval_file_.get();
  if (!why_own.empty()) {
    const auto& images = dynamic_cast<const data::Images&>(*eval_);
    const std::string by = images.names_statistics()
                               ? "its own mean and deviation"
                               : fmt::format("mean {:g} and deviation {:g}, as it names none",
                                             images.mean().front(), images.deviation().front());
    warnings_.push_back(
        fmt::format("{}: normalised by {}, not the training data's: {}", eval_path, by, why_own));
  }
  check_meanings();
  map_to_unit_range(config);
  std::vector<std::string> normalized = config.data.normalize;
  if (!targets) std::erase_if(normalized, [&](const std::string& name) { return !has_field(*eval_, name); });
  add_normalized_fields(normalized);
  use(from, own_statistics);
}

DataSets::~DataSets() = default;

template <class Kind>
std::vector<Kind*> DataSets::all_of() const {
  std::vector<Kind*> all;
  const auto add_if_kind = [&](const std::unique_ptr<data::Dataset>& dataset) {
    if (auto* const one = dynamic_cast<Kind*>(dataset.get())) all.push_back(one);
  };
  for (const Source& source : sources_) add_if_kind(source.whole);
  add_if_kind(eval_file_);
  return all;
}

std::string DataSets::tokenizer() const {
  const std::vector<const data::Text*> texts = all_of<const data::Text>();
  return texts.empty() ? "" : texts.front()->tokenizer();
}

/// All files as the first one.
void DataSets::map_to_unit_range(const Config& config) {
  if (!takes_unit_range(config))
    return check_no_range(config, "the task takes x as it is, see data.normalize");
  if (is_custom(config) || format_ == "text")
    return check_no_range(config, fmt::format("data of the format {} are taken as they are", format_));
  DataConfig as_first = config.data;
  for (data::Dataset* const dataset : all_of<data::Dataset>()) {
    const std::optional<StoredRange> range = train::map_to_unit_range(as_first, *dataset);
    if (range_ || !range) continue;
    range_ = range;
    as_first.range = {range->low, range->high};
  }
}

/// Until their numbers are known they are 0 and 1: what reads the fields has their type already.
void DataSets::add_normalized_fields(const std::vector<std::string>& names) {
  if (names.empty()) return;
  const std::vector<data::Arrays*> all = all_of<data::Arrays>();
  if (all.empty()) throw UsageError("data.normalize: only arrays are normalised; remove it");
  const std::vector<data::Field>& fields = all.front()->fields();
  for (const std::string& name : names) {
    const auto field = std::ranges::find(fields, name, &data::Field::name);
    if (field == fields.end()) {
      std::vector<std::string> there;
      for (const data::Field& one : fields) there.push_back(one.name);
      throw UsageError("data.normalize: {} has no field {}; it has {}", all.front()->name(), quote(name),
                       fmt::join(there, ", "));
    }
    if (std::ranges::find(normalized_, name, &NormalizedField::name) != normalized_.end())
      throw UsageError("data.normalize: names {} twice", name);
    const auto channels = static_cast<std::size_t>(data::normalization_channels(field->shape));
    normalized_.push_back(
        {.name = name,
         .by = {.mean = std::vector<double>(channels, 0), .deviation = std::vector<double>(channels, 1)}});
  }
  for (const NormalizedField& field : normalized_) use(field);
}

void DataSets::use(const NormalizedField& field) {
  for (data::Arrays* const one : all_of<data::Arrays>()) one->normalize(field.name, field.by);
}

void DataSets::measure(comm::HostGroup& world) {
  const std::vector<data::Arrays*> arrays = all_of<data::Arrays>();
  for (NormalizedField& field : normalized_) {
    std::optional<data::Normalization> found = arrays.front()->stored_normalization(field.name);
    if (!found) {
      for (data::Arrays* const one : arrays) one->read_as_stored(field.name);
      std::vector<data::Mixture::Source> parts;
      for (const Source& source : sources_) parts.push_back({.dataset = &source.train()});
      if (parts.empty()) parts.push_back({.dataset = eval_});
      found = data::normalization_of(data::Mixture(std::move(parts), false), field.name, world);
    }
    field.by = std::move(*found);
    field.known = true;
    comm::run_on_all(world, [&] { use(field); });
  }
}

void DataSets::use(const LearnedFrom& from, bool own_statistics) {
  for (const data::Dataset* const one : {train_, eval_}) {
    if (!one) continue;
    for (const data::Field& field : one->fields()) {
      const auto found = from.fields.find(field.name);
      if (found == from.fields.end()) continue;
      data::FieldMeaning learned = found->second;
      if (learned.by) learned.scale.value.named = *learned.by;
      if (own_statistics) learned.scale.value.largest = 0;  // the data have their own scale
      learned.merge(field.name, one->meaning(field.name));
    }
  }
  if (own_statistics) return;
  if (!range_) use_images(from);
  for (NormalizedField& field : normalized_) {
    const data::Normalization* const by = from.normalization(field.name);
    if (!by && !field.known)
      throw DataError("{} holds no mean and deviation of field {} (/data/{}), which data.normalize names",
                      from.name, quote(field.name), field.name);
    if (by) field.by = *by;
    field.known = true;
    use(field);
  }
}

void DataSets::use_images(const LearnedFrom& from) {
  const data::Normalization* const by = from.normalization("x");
  bool said = false;
  for (data::Images* const images : all_of<data::Images>()) {
    const data::Normalization own{images->mean(), images->deviation()};
    if (!by || own == *by) continue;
    if (own.mean.size() != by->mean.size())
      throw DataError("{}: images have {}, but {} learned from images of {}", images->name(),
                      pluralized(own.mean.size(), "channel"), from.name, by->mean.size());
    images->normalize(by->mean, by->deviation);
    if (images->names_statistics() && !std::exchange(said, true))
      warnings_.push_back(
          fmt::format("{}: normalised by mean and deviation {}, as the data that {} learned from, not by {}",
                      images->name(), text_of(*by), from.name, text_of(own)));
  }
}

void add(checkpoint::StateDict& state_dict, const DataSets& data) {
  for (const data::Field& field : data.train().fields()) {
    const data::FieldMeaning meaning = data.train().meaning(field.name);
    checkpoint::Section section;
    section.path = fmt::format("{}{}", normalization_prefix, field.name);
    if (meaning.by) section = checkpoint::normalization_section(field.name, *meaning.by, {});
    const auto describe = [&](std::string_view name, checkpoint::AttributeValue value) {
      section.attributes.push_back({std::string(name), std::move(value), {}});
    };
    const double largest = meaning.scale.value.largest;
    describe(type_attribute,
             std::string(to_string((largest > 0 ? meaning.scale.value : meaning.stored).dtype)));
    if (largest > 0) describe(largest_attribute, largest);
    if (!meaning.units.value.empty()) describe(units_attribute, meaning.units.value);
    if (!meaning.packing.value.value_or("").empty()) describe(packing_attribute, *meaning.packing.value);
    for (const auto& [name, names] :
         {std::pair(classes_attribute, &meaning.classes.value), {names_attribute, &meaning.names.value}})
      if (!names->empty()) describe(name, fmt::format("{}", fmt::join(*names, "\n")));
    if (field.name == "x" && data.range())
      describe("range", fmt::format("{} {}", data.range()->low, data.range()->high));
    state_dict.sections.push_back(std::move(section));
  }
}

void log_warnings(DataSets& data, Session& session) {
  for (const std::string& warning : data.take_warnings())
    if (session.world().rank() == 0) session.log().warning("{}", warning);
}

void warn_of_held_out(const DataSets& data, Session& session) {
  constexpr std::int64_t most_bytes_of_a_rank = std::int64_t{128} << 20;
  if (!data.eval()) return;
  const std::string found = data::first_not_finite(*data.eval(), most_bytes_of_a_rank, session.world());
  if (!found.empty())
    session.log().warning("held-out data: {}: metrics that depend on it will not be finite", found);
}

void blame_data(const TrainingError& error, data::Loader& loader, const DataSets& data, std::int64_t step,
                Session& session) {
  const std::string what = error.what();
  comm::run_on_all(session.world(), [&] {
    const std::string found = data::not_finite_in_step(loader, data.train(), step, session.backend());
    if (!found.empty())
      throw TrainingError("{}; {}: correct the number, or leave the sample out",
                          what.substr(0, what.find(';')), found);
  });
}

std::span<const Batch>::iterator StepShards::begin() {
  const Stopwatch watch;
  logs.check_held();
  shards = loader.at(step).shards;
  wait_ms = watch.elapsed_ms();
  return shards.begin();
}

void check_tokenizer(const std::string& data_name, const std::string& data, const std::string& model_name,
                     const std::string& model) {
  if (data == model || data.empty() || model.empty()) return;
  throw DataError("{}: its tokens are of the tokenizer {}, but {} learned from tokens of {}", data_name,
                  quote(data), model_name, quote(model));
}

}  // namespace lockstep::train
