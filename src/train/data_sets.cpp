#include "train/data_sets.h"

#include <fmt/ranges.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>

#include "base/files.h"
#include "base/text.h"
#include "data/finite.h"
#include "data/picture_list.h"
#include "data/prepare.h"
#include "data/ragged.h"
#include "data/table.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/arrays.h"
#include "lockstep/data/pictures.h"
#include "lockstep/hdf5/file.h"
#include "lockstep/tasks/built_in.h"
#include "train/components.h"

namespace lockstep::train {
namespace {

/// By its name text, or what only other programs read, and no HDF5 file.
bool is_table(const std::string& path) {
  constexpr std::array ends{".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz", ".xlsx", ".parquet"};
  if (std::ranges::none_of(ends, [&](const char* end) { return lower_case(path).ends_with(end); }))
    return false;
  std::error_code ignored;  // reading reports it
  std::string begin(4, ' ');
  if (std::filesystem::is_regular_file(path, ignored))
    std::ifstream(path, std::ios::binary).read(begin.data(), std::ssize(begin));
  return begin != "\x89HDF";
}

/// DataError for a missing file, or a table, with the key that names it and the remedy.
void check_present(const char* key, const std::string& path) {
  const bool is_there = exists(path);
  if (is_there && is_table(path))
    throw DataError(
        "{}: {} is no data file; make one: lockstep prepare csv (of held-out data: with --statistics "
        "TRAIN.h5), or lockstep prepare text",
        key, path);
  if (is_there || errno == EACCES) return;  // opening it reports EACCES
  throw DataError(
      "{}: {}: No such file; lockstep prepare makes data files, and paths are relative to the folder where "
      "lockstep is started",
      key, path);
}

const data::Registry& kinds_of_data(const Config& config) {
  return (config.registries ? *config.registries : built_in_registries()).data;
}

/// A data set of the program, with files of any kind.
bool is_custom(const Config& config, const std::string& format) {
  const data::Registry& kinds = kinds_of_data(config);
  return kinds.has(format) && !kinds.configure(format).type->built_in;
}

bool takes_unit_range(const Config& config) { return make_task(config)->takes_unit_range(); }

data::Request request_for(const Config& config, const models::Model& model, std::vector<std::string> files,
                          bool targets = true) {
  const std::vector<std::string> read = model.reads();
  if (config.data.documents == "mask" && model.context() == 0)
    throw UsageError("data.documents = mask: model.name = {} does not read text", config.model.name());
  const bool reads_labels = read.empty() || std::ranges::find(read, "y") != read.end();
  return {.files = std::move(files),
          .fields = config.data.fields,
          .normalizes = !config.data.normalize.empty(),
          .context = model.context(),
          .classes = model.classes(),
          .documents_apart = config.data.documents == "mask",
          .takes_images = model.sample_shape().rank() > 0 && !model.reads_lengths(),
          .takes_series = model.reads_lengths(),
          .y_lengths = model.output_lengths(),
          .classifies = config.task.options_of<tasks::Classification>() != nullptr,
          .labels = reads_labels || !takes_unit_range(config),  // whose x alone is learned
          .targets = targets,
          .pictures = config.data.pictures,
          .augment = config.data.augment,
          .listings = config.data.listings,
          .memory_limit_bytes = 0};  // hold_on_node() follows
}

/// The kind of data.format; of `auto`, the kind for these files.
data::Registry::Choice kind_of(const Config& config, const data::Request& request) {
  if (config.data.kind.type) return config.data.kind;
  const data::Registry& kinds = kinds_of_data(config);
  if (const std::string& format = config.data.format; !format.empty() && !kinds.has(format)) {
    std::vector<std::string> words{"auto"};
    std::ranges::copy(kinds.names(), std::back_inserter(words));
    try {
      option::check_word(format, words);
    } catch (const UsageError& error) {
      throw UsageError("data.format: {}", error.what());
    }
  }
  return data::kind_of(kinds, config.data.format, request);
}

/// The mean and deviation of each channel, for messages.
std::string text_of(const data::Normalization& by, bool exact) {
  return exact ? fmt::format("{} and {}", fmt::join(by.mean, " "), fmt::join(by.deviation, " "))
               : fmt::format("{:.6g} and {:.6g}", fmt::join(by.mean, " "), fmt::join(by.deviation, " "));
}

/// UsageError if the first samples leave [-1, 1], the default range of floats.
void check_unit_range(const data::Dataset& dataset) {
  constexpr std::int64_t looked_at = 64;
  constexpr float limit = 1.001f;  // rounding
  std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(looked_at, dataset.size())));
  std::iota(indices.begin(), indices.end(), 0);
  const std::vector<Tensor> tensors = data::tensors_for(dataset, indices);
  const Tensor x = tensors[data::field_number(dataset, "x")];
  if (x.dtype() != DType::float32) return;
  dataset.read(indices, tensors);
  const std::span<const float> values(x.data<float>(), static_cast<std::size_t>(x.numel()));
  const auto outside = std::ranges::find_if(values, [](float value) { return std::abs(value) > limit; });
  if (outside == values.end()) return;
  const auto [low, high] = std::ranges::minmax(values);
  throw UsageError(
      "data.range: is missing: x of {} has values from {:g} to {:g} (in its first {}); give the lowest and "
      "the highest value it can have (task.name = diffusion learns x; regression and classification learn y)",
      dataset.name(), low, high, pluralized(std::ssize(indices), "sample"));
}

/// Makes the data file, in memory, of a table whose columns are those that the weights learned from. Adds
/// notes.
std::shared_ptr<hdf5::File> open_table(const std::string& path, const models::Model& model,
                                       const LearnedFrom& from, data::CsvOptions how,
                                       std::vector<std::string>& notes) {
  const auto x = from.fields.find("x"), y = from.fields.find("y");
  const bool known =
      x != from.fields.end() && !(x->second.table.value.empty() && x->second.names.value.empty());
  if (!known || (!how.keeps_lines && x->second.table.value.empty()))
    throw DataError(
        "{}: {} does not name the {} of its data; make a data file: lockstep prepare csv {} --statistics "
        "TRAIN.h5 --out DATA.h5",
        path, from.name, known ? "column of the labels" : "columns", shell_quoted(path));
  const data::FieldMeaning& learned = x->second;
  const data::Table table = learned.table.value.empty() ? data::Table::of_numbers(learned.names.value)
                                                        : data::Table::parse(learned.table.value, from.name);
  how.label = !how.keeps_lines && table.target ? "last" : "none";
  how.table = &table;
  how.dtype = learned.scale.value.dtype;
  if (y != from.fields.end()) how.class_names = y->second.classes.value;
  if (const Shape shape = model.sample_shape();
      learned.table.value.empty() && shape.rank() == 3 && shape.numel() == std::ssize(learned.names.value))
    how.image = shape;
  const std::string name = path + " (table)";
  auto file =
      std::make_shared<hdf5::File>(hdf5::File::create(name, {.in_memory = true, .checksummed = true}));
  notes = data::prepare_csv(std::array{path}, {.path = name, .memory = file}, how).notes;
  return file;
}

/// The files of a pattern such as "train-*.h5", in the order of their bytes; itself if it is of none.
std::vector<std::string> files_of(const std::string& pattern) {
  glob_t found{};
  const std::unique_ptr<glob_t, decltype(&::globfree)> freed(&found, &::globfree);
  if (::glob(pattern.c_str(), 0, nullptr, &found) != 0) return {pattern};
  std::vector<std::string> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  std::ranges::sort(files);  // not as a rank's language orders them
  return files;
}

}  // namespace

std::vector<TrainingFile> training_files(const DataConfig& config) {
  std::vector<TrainingFile> files;
  for (const std::string& word : config.train) {
    const std::size_t star = word.rfind('*');
    if (star == std::string::npos || exists(word)) {
      files.push_back({.path = word, .weight = {}});
      continue;
    }
    double weight = 0;
    const char* const end = word.data() + word.size();
    const auto [read_to, error] = std::from_chars(word.data() + star + 1, end, weight);
    if (read_to != end || (error != std::errc() && error != std::errc::result_out_of_range)) {
      for (const std::string& path : files_of(word)) files.push_back({.path = path, .weight = {}});
      continue;
    }
    if (error != std::errc() || !(weight > 0 && std::isfinite(weight)))
      throw UsageError("data.train: {}: the weight of a file is a number above 0", word);
    files.push_back({.path = word.substr(0, star), .weight = weight});
  }
  return files;
}

void set_fields(Config& config, const models::Model& model, std::vector<std::string> fields) {
  std::string format = "arrays";
  try {
    const std::string first = config.data.train.empty() ? "" : training_files(config.data)[0].path;
    format = kind_of(config, request_for(config, model, {first})).name();
  } catch (const DataError&) {  // the training data may be elsewhere
  }
  if (format != "arrays")
    throw UsageError("--fields: the data of the run are {}, which have no fields to choose", format);
  config.data.fields = std::move(fields);
}

void list_folders(Config& config, comm::HostGroup& world, const std::string& only) {
  std::vector<std::string> paths{only};
  if (only.empty()) {
    paths = {config.data.eval};
    for (const TrainingFile& file : training_files(config.data)) paths.push_back(file.path);
  }
  config.data.listings = std::make_shared<const data::PictureListings>(
      data::list_folders(paths, config.data.pictures, world, {.labels_are_theirs = only.empty()}));
}

DataSets::DataSets(const Config& config, const models::Model& model) {
  open_train(config, model);
  map_to_unit_range(config);
  add_normalized_fields(config.data.normalize, model);
  if (config.data.eval_fraction > 0) {
    for (Source& source : sources_)
      source.split.emplace(data::split(*source.whole, config.data.eval_fraction, config.ddp.seed));
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
  weigh(config.data);
  const std::int64_t samples = config.train.eval_samples;
  if (!eval_ || samples == 0 || samples >= eval_->size()) return;
  // Independent of the permutations of the epochs and of the split.
  const std::uint64_t seed = mix_bits(config.ddp.seed ^ purpose_of("eval_samples"));
  eval_part_.emplace(*eval_, 0, samples, data::Permutation(eval_->size(), seed, 0));
}

std::unique_ptr<data::Dataset> DataSets::open(const Config& config, const data::Request& request) {
  const data::Registry::Choice kind = kind_of(config, request);
  format_ = kind.name();
  std::unique_ptr<data::Dataset> dataset = kind.make(request);
  data::with_indices(*dataset);  // DataError for names and indices that no batch can have
  for (std::string& note : dataset->notes()) warnings_.push_back(std::move(note));
  const bool is_text = dataset->meaning(dataset->fields().front().name).tokens.value.vocabulary > 0;
  if (!is_text && !dataset->can_normalize()) dataset = std::make_unique<data::Normalized>(std::move(dataset));
  return dataset;
}

/// Without weights all files are one data set.
void DataSets::open_train(const Config& config, const models::Model& model) {
  const std::vector<TrainingFile> files = training_files(config.data);
  std::vector<std::string> paths;
  for (const TrainingFile& file : files) paths.push_back(file.path);
  const data::Request request = request_for(config, model, paths);
  Config as_first = config;
  if (config.data.format.empty()) {  // the words of a program's own kind need not be files
    const data::Registry::Type* const own = data::fitting_kind(kinds_of_data(config), request, true);
    if (own) as_first.data.format = own->name;
  } else {
    kind_of(config, request);  // UsageError if there is none of that name, before files are looked for
  }
  if (!is_custom(config, as_first.data.format)) {
    if (files.empty())
      throw UsageError("data.train: is missing; give an HDF5 data file (see lockstep prepare)");
    for (const TrainingFile& file : files) check_present("data.train", file.path);
    if (!config.data.eval.empty()) check_present("data.eval", config.data.eval);
  }
  as_first.data.format = kind_of(as_first, request).name();
  const auto open = [&](std::vector<std::string> of) {
    return this->open(as_first, request_for(config, model, std::move(of)));
  };
  if (std::ranges::any_of(files, [](const TrainingFile& file) { return file.weight.has_value(); })) {
    for (const TrainingFile& file : files)
      sources_.push_back({.whole = open({file.path}), .split = {}, .weight = file.weight.value_or(1)});
  } else {
    sources_.push_back({.whole = open(paths), .split = {}});
  }
  if (!config.data.eval.empty()) eval_file_ = open({config.data.eval});
  const data::Dataset& first = *all().front();  // numbers the classes
  if (!data::has_field(first, "y")) return;
  for (data::Dataset* const one : all()) one->number_classes("y", first.meaning("y").classes);
}

/// Checks that training and evaluation data have the same meaning. Warns of packed values.
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
                   const LearnedFrom& from, bool targets, bool own_statistics, bool unknown_as_missing) {
  if (data::is_picture_name(eval_path) && !is_directory(eval_path))
    throw DataError("{}: is one picture; give its folder", eval_path);
  std::shared_ptr<hdf5::File> table;  // until it is open as data
  if (is_table(eval_path) && !is_custom(config, config.data.format))
    table = open_table(
        eval_path, model, from,
        {.unknown_as_missing = unknown_as_missing, .own_statistics = own_statistics, .keeps_lines = !targets},
        notes_);
  const std::string path = table ? table->file_path() : eval_path;
  const data::Request request = request_for(config, model, {path}, targets);
  Config as_trained = config;
  std::unique_ptr<data::Dataset> trained_on;
  std::string why_own;  // error of the training data, if the file's own mean and deviation are used
  const bool known = takes_unit_range(config) || own_statistics || from.normalization("x");
  if (!known && (config.data.format.empty() || config.data.format == "images")) {
    try {
      std::vector<std::string> paths;
      for (const TrainingFile& file : training_files(config.data)) paths.push_back(file.path);
      if (paths.empty()) throw UsageError("no image files were named");
      const data::Request training = request_for(config, model, std::move(paths));
      as_trained.data.format = kind_of(config, training).name();
      if (as_trained.data.format == "images") trained_on = open(as_trained, training);
    } catch (const Error& error) {  // the training data may be elsewhere
      as_trained.data.format = kind_of(config, request).name();
      if (as_trained.data.format == "images") why_own = error.what();
    }
  }
  eval_file_ = open(as_trained, request);
  eval_ = eval_file_.get();
  if (trained_on) {
    for (const data::Field& field : eval_->fields())
      if (data::has_field(*trained_on, field.name))
        trained_on->meaning(field.name).merge(field.name, eval_->meaning(field.name));
    eval_file_->normalize("x", trained_on->meaning("x").by);
  } else if (!why_own.empty()) {
    const data::FieldMeaning x = eval_->meaning("x");
    const std::string by = !x.stored.named.mean.empty()
                               ? "its own mean and deviation"
                               : fmt::format("mean {:g} and deviation {:g}, as it names none",
                                             x.by->mean.front(), x.by->deviation.front());
    warnings_.push_back(
        fmt::format("{}: normalised by {}, not the training data's: {}", eval_path, by, why_own));
  }
  check_meanings();
  map_to_unit_range(config);
  std::vector<std::string> normalized = config.data.normalize;
  if (!targets)
    std::erase_if(normalized, [&](const std::string& name) { return !data::has_field(*eval_, name); });
  add_normalized_fields(normalized, model);
  use(from, own_statistics);
}

DataSets::~DataSets() = default;

std::vector<data::Dataset*> DataSets::all() const {
  std::vector<data::Dataset*> all;
  for (const Source& source : sources_) all.push_back(source.whole.get());
  if (eval_file_) all.push_back(eval_file_.get());
  return all;
}

data::Tokens DataSets::tokens() const {
  const data::Dataset& first = *all().front();
  return first.meaning(first.fields().front().name).tokens.value;
}

void DataSets::weigh(const DataConfig& config) {
  const bool balances = !config.balance.empty();
  if (!config.shuffle && (balances || !config.weights.empty() || sources_.size() > 1))
    throw UsageError(
        "data.shuffle = false: takes samples in the order of the data, but data.balance, data.weights and a "
        "mixture in data.train draw them; remove one");
  if (!balances && config.weights.empty()) return;
  const char* const key = balances ? "data.balance" : "data.weights";
  if (balances && !config.weights.empty())
    throw UsageError("data.balance: and data.weights both decide how samples are drawn; remove one");
  if (sources_.size() > 1)
    throw UsageError("{}: data.train is a mixture, which draws by its weights; remove it", key);
  try {
    draw_weights_ = train_->column(balances ? config.balance : config.weights);
    if (balances) {
      std::map<double, double> counts;
      for (const double value : draw_weights_) ++counts[value];
      for (double& value : draw_weights_) value = 1 / counts[value];
    }
    data::WeightedDraws(draw_weights_, 0);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", key, error.what()));
  }
}

std::string DataSets::listing() const {
  std::string listing;
  for (const data::Dataset* const one : all()) listing += one->listing();
  return listing;
}

/// All files have the range of the first.
void DataSets::map_to_unit_range(const Config& config) {
  const std::vector<double>& ends = config.data.range;
  const auto check_no_range = [&](const std::string& why) {
    if (!ends.empty()) throw UsageError("data.range: {}; remove it", why);
  };
  if (!takes_unit_range(config)) return check_no_range("the task takes x as it is, see data.normalize");
  const data::Dataset& first = *all().front();
  if (!first.can_normalize())
    return check_no_range(fmt::format("data of the format {} are taken as they are", format_));
  if (std::ranges::find(config.data.normalize, "x") != config.data.normalize.end())
    throw UsageError("data.normalize: names x, which the task needs in [-1, 1] (data.range); remove it");
  if (!data::has_field(first, "x") || (ends.empty() && is_custom(config, format_))) return;
  range_ = {.low = -1, .high = 1, .field = first.meaning("x").stored};
  const DType dtype = range_->field.dtype;
  if (!ends.empty()) {
    range_->low = ends[0];
    range_->high = ends[1];
  } else if (dtype == DType::uint8) {
    range_->low = 0;
    range_->high = 255;
  } else if (!is_floating(dtype)) {
    throw UsageError(
        "data.range: is missing: x of {} is {}; give the lowest and the highest value it can have",
        first.name(), to_string(dtype));
  }
  for (data::Dataset* const one : all()) {
    const Shape& shape = data::field_named(*one, "x").shape;
    one->normalize("x", range_->normalization(data::normalization_channels(shape)));
  }
  if (ends.empty() && is_floating(dtype)) check_unit_range(first);
}

/// Until mean and deviation of data.normalize are known they are 0 and 1, so that the types of fields are
/// final. Images are normalised by the attributes of the first file.
void DataSets::add_normalized_fields(const std::vector<std::string>& names, const models::Model& model) {
  const data::Dataset& first = *all().front();
  for (const std::string& name : names) {
    if (!data::has_field(first, name)) {
      std::vector<std::string> there;
      for (const data::Field& one : first.fields()) there.push_back(one.name);
      throw UsageError("data.normalize: {} has no field {}; it has {}", first.name(), quote(name),
                       fmt::join(there, ", "));
    }
    if (std::ranges::find(normalized_, name, &NormalizedField::name) != normalized_.end())
      throw UsageError("data.normalize: names {} twice", name);
    const data::Field& field = data::field_named(first, name);
    auto means = static_cast<std::size_t>(data::normalization_channels(field.shape));
    if (model.reads_lengths() && field.shape.rank() == 2) means = static_cast<std::size_t>(field.shape[1]);
    if (name == "y" && model.reads_lengths() && !model.output_lengths().empty() && field.shape.rank() == 1)
      means = 1;  // [T]
    normalized_.push_back(
        {.name = name,
         .by = {.mean = std::vector<double>(means, 0), .deviation = std::vector<double>(means, 1)}});
  }
  for (const data::Field& field : first.fields())
    if (const auto by = first.meaning(field.name).by;
        by && !range_ && std::ranges::find(names, field.name) == names.end())
      normalized_.push_back({.name = field.name, .by = *by, .by_key = false, .known = true});
  for (const NormalizedField& field : normalized_) normalize(field);
}

void DataSets::normalize(const NormalizedField& field) {
  const data::Dataset& first = *all().front();
  const Shape& known = data::field_named(first, field.name).shape;
  for (data::Dataset* const one : all()) {
    const Shape& shape = data::field_named(*one, field.name).shape;
    if ((shape.rank() > 2 && shape[0] != known[0]) ||
        data::normalization_block(shape, std::ssize(field.by.mean)) == 0)
      throw DataError("{}: samples of {} are {}, but those of {} are {}", one->name(), field.name,
                      to_string(shape), first.name(), to_string(known));
    one->normalize(field.name, field.by);
  }
}

void DataSets::hold_on_node(comm::HostGroup& world, const Config& config) {
  const comm::NamedCall call(world, "reads data into memory");
  std::int64_t left_bytes =
      std::ranges::min(comm::all_gather_values(world, config.data.memory_bytes()));  // nodes may differ
  for (data::Dataset* const one : all()) one->hold_on_node(world, left_bytes);
}

void DataSets::measure(comm::HostGroup& world) {
  for (NormalizedField& field : normalized_) {
    if (!field.by_key) continue;
    data::Normalization found = all().front()->meaning(field.name).stored.named;
    if (found.mean.empty()) {
      for (data::Dataset* const one : all()) one->normalize(field.name, std::nullopt);
      std::vector<data::Mixture::Source> parts;
      for (const Source& source : sources_) parts.push_back({.dataset = &source.train()});
      if (parts.empty()) parts.push_back({.dataset = eval_});
      found = data::normalization_of(data::Mixture(std::move(parts), false), field.name, world,
                                     std::ssize(field.by.mean));
    }
    field.by = std::move(found);
    field.known = true;
    comm::run_on_all(world, [&] { normalize(field); });
  }
}

void DataSets::use(const LearnedFrom& from, bool own_statistics) {
  for (data::Dataset* const one : all())
    for (const auto& [field, learned] : from.fields) one->number_classes(field, learned.classes);
  for (const data::Dataset* const one : {train_, eval_}) {
    if (!one) continue;
    for (const data::Field& field : one->fields()) {
      const auto found = from.fields.find(field.name);
      if (found == from.fields.end()) continue;
      data::FieldMeaning learned = found->second;
      if (learned.by) learned.scale.value.named = *learned.by;
      if (own_statistics) learned.scale.value.largest = 0;  // the data have their own scale
      learned.merge(field.name, one->meaning(field.name));
      if (field.padded_by.empty() && !learned.padded_by.empty())
        warnings_.push_back(
            fmt::format("{}: has no {}, unlike the data that {} learned from: all steps of {} exist",
                        one->name(), learned.padded_by, from.name, field.name));
    }
  }
  if (own_statistics) return;
  for (NormalizedField& field : normalized_) {
    const data::Normalization* const by = from.normalization(field.name);
    if (!by && !field.known)
      throw DataError("{} holds no mean and deviation of field {} (/data/{}), which data.normalize names",
                      from.name, quote(field.name), field.name);
    field.known = true;
    if (!by) continue;
    const Shape& shape = data::field_named(*all().front(), field.name).shape;
    const auto means = std::ssize(by->mean);
    if (means != std::ssize(field.by.mean) &&
        (shape.rank() != 2 || data::normalization_block(shape, means) == 0))
      throw DataError("{}: field {} has {}, but {} learned from samples of {}", all().front()->name(),
                      field.name, pluralized(field.by.mean.size(), "channel"), from.name, by->mean.size());
    for (const data::Dataset* const one : all()) {
      const data::Normalization named = one->meaning(field.name).stored.named;
      if (named.mean.empty() || named == *by) continue;
      const bool exact = text_of(*by, false) == text_of(named, false);
      warnings_.push_back(
          fmt::format("{}: normalised by mean and deviation {}, as the data that {} learned from, not by {}",
                      one->name(), text_of(*by, exact), from.name, text_of(named, exact)));
      break;
    }
    field.by = *by;
    normalize(field);
  }
}

void log_warnings(DataSets& data, Session& session) {
  for (const std::string& note : data.notes())
    if (session.world().rank() == 0) session.log().info("{}", note);
  for (const std::string& warning : data.take_warnings())
    if (session.world().rank() == 0) session.log().warning("{}", warning);
}

void warn_of_held_out(const DataSets& data, Session& session) {
  constexpr std::int64_t max_bytes_of_a_rank = std::int64_t{128} << 20;
  if (!data.eval()) return;
  const std::string found = data::first_not_finite(*data.eval(), max_bytes_of_a_rank, session.world());
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

}  // namespace lockstep::train
