#include "train/infer/predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/output.h"
#include "base/progress.h"
#include "base/text.h"
#include "checkpoint/elements.h"
#include "checkpoint/file_lock.h"
#include "checkpoint/layout.h"
#include "checkpoint/run_files.h"
#include "data/data_file.h"
#include "data/ragged.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/loader.h"
#include "lockstep/hdf5/file.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/ops/loss.h"
#include "train/infer/chunks.h"

namespace lockstep::train {
namespace {

/// log softmax(logits)[target] of each row.
void log_probabilities_of(const Tensor& logits, const Tensor& targets, const Tensor& into) {
  const std::int64_t classes = logits.size(logits.shape().rank() - 1);
  const float* row = logits.data<float>();
  for (std::int64_t i = 0; i < into.numel(); ++i, row += classes) {
    const std::int64_t target = targets.data<std::int64_t>()[i];
    if (target == ops::CrossEntropyOptions{}.ignore_index) {  // the end of a document
      into.data<float>()[i] = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    if (target < 0 || target >= classes)
      throw DataError("a target is {}, but the model knows {} tokens", target, classes);
    const auto most = static_cast<double>(*std::max_element(row, row + classes));
    double sum = 0;
    for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(static_cast<double>(row[c]) - most);
    into.data<float>()[i] = static_cast<float>(static_cast<double>(row[target]) - most - std::log(sum));
  }
}

/// In place, one number for all elements or for each channel of a sample.
void in_own_units(const data::Normalization& units, const Tensor& output) {
  if (output.numel() == 0) return;
  const std::int64_t elements = output.numel() / output.size(0), channels = std::ssize(units.mean);
  if (channels == 0 || elements % channels != 0)
    throw DataError("outputs have {} elements, but the target's normalisation has {}", elements, channels);
  const std::int64_t known = data::normalization_block(Shape(output.shape().extents().subspan(1)), channels),
                     block = known > 0 ? known : elements / channels;
  float* const values = output.data<float>();
  for (std::int64_t e = 0; e < output.numel(); ++e) {
    const auto channel = static_cast<std::size_t>(e / block % channels);
    values[e] =
        static_cast<float>(static_cast<double>(values[e]) * units.deviation[channel] + units.mean[channel]);
  }
}

/// Rows of one dataset of the file.
struct Rows {
  std::string name;
  Tensor values;  // [rows, ...] on the CPU; of texts uint8 [rows, bytes], padded with null bytes
  bool texts = false;
  bool ragged = false;       // rows of Model::output_rows(), not one a sample
  std::uint64_t offset = 0;  // of the dataset in the file, where its rows are one after another

  std::int64_t row_elements() const { return values.shape().with(0, 1).numel(); }
  std::int64_t cells() const { return texts ? 1 : row_elements(); }  // of a row of a table
  std::uint64_t row_bytes() const {
    return static_cast<std::uint64_t>(row_elements()) * bytes_of(values.dtype());
  }
};

/// A cell of a CSV file (RFC 4180), with a comma.
std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text + ',';
  std::string quoted = "\"";
  for (const char letter : text) quoted += letter == '"' ? "\"\"" : std::string(1, letter);
  return quoted + "\",";
}

/// Predictions as CSV: row; label and probability of each class, or the outputs.
class CsvTable {
 public:
  static bool is_name(const std::string& out) { return lower_case(out).ends_with(".csv"); }

  /// columns: any rows of row, label and probability if they are known, output. UsageError for more than a
  /// spreadsheet takes.
  CsvTable(std::vector<Rows> columns, const PredictionMeaning& meaning)
      : columns_(std::move(columns)), meaning_(meaning) {
    if (columns_.size() > 2) columns_.pop_back();  // labels stand for the logits
    constexpr std::int64_t max_cells = 16384;
    std::int64_t cells = 0;
    for (const Rows& column : columns_) cells += column.cells();
    if (cells > max_cells)
      throw UsageError("--out: a table would have {} columns, and spreadsheets take {}; write a file .h5",
                       cells, max_cells);
  }

  void write(OpenFile& csv, const OpenFile& predictions, std::int64_t rows) const {
    std::string lines;
    for (const Rows& column : columns_)
      for (std::int64_t i = 0; i < column.cells(); ++i) lines += cell(heading(column, i));
    lines.back() = '\n';  // in place of a comma
    constexpr std::int64_t block = 256;
    for (std::int64_t first = 0; first < rows; first += block) {
      progress::tick();
      const std::int64_t count = std::min(block, rows - first);
      std::vector<Rows> values;
      for (const Rows& column : columns_) {
        const Tensor block_of = Tensor::empty({count, column.row_elements()}, column.values.dtype());
        predictions.read_at(column.offset + static_cast<std::uint64_t>(first) * column.row_bytes(),
                            block_of.raw(), block_of.bytes());
        values.push_back({.name = column.name, .values = block_of, .texts = column.texts});
      }
      for (std::int64_t row = 0; row < count; ++row) {
        for (const Rows& of : values) add(lines, of, row);
        lines.back() = '\n';
      }
      csv.append(lines);
      lines.clear();
    }
  }

 private:
  std::string class_name(std::int64_t label) const {
    const std::vector<std::string>& names = meaning_.classes;
    if (label < 0) return "";
    return label < std::ssize(names) ? names[static_cast<std::size_t>(label)] : std::to_string(label);
  }

  std::string heading(const Rows& column, std::int64_t i) const {
    if (column.name == "output" && std::ssize(meaning_.names) == column.cells())
      return meaning_.names[static_cast<std::size_t>(i)];
    if (column.cells() == 1) return column.name;
    const bool of_classes = column.name == "probability" && std::ssize(meaning_.classes) == column.cells();
    return fmt::format("{}_{}", column.name, of_classes ? class_name(i) : std::to_string(i));
  }

  void add(std::string& line, const Rows& rows, std::int64_t row) const {
    const std::int64_t begin = row * rows.row_elements(), end = begin + rows.row_elements();
    if (rows.texts)
      line += cell(reinterpret_cast<const char*>(rows.values.data<std::uint8_t>() + begin));
    else if (rows.values.dtype() == DType::float32)
      for (std::int64_t i = begin; i < end; ++i) line += fmt::format("{},", rows.values.data<float>()[i]);
    else
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t value = rows.values.data<std::int64_t>()[i];
        line += cell(rows.name == "label" ? class_name(value) : std::to_string(value));
      }
  }

  std::vector<Rows> columns_;
  const PredictionMeaning& meaning_;
};

/// UsageError for a name that says another kind of file.
void check_ending(const std::string& out) {
  constexpr std::array others{".xlsx", ".xls", ".ods", ".tsv", ".txt", ".json",    ".npy",    ".npz",
                              ".gz",   ".bz2", ".xz",  ".zip", ".zst", ".parquet", ".feather"};
  if (std::ranges::find(others, std::filesystem::path(lower_case(out)).extension()) != others.end())
    throw UsageError(
        "--out {}: predictions are written as .csv, which spreadsheets open, or .h5; convert that file", out);
}

constexpr const char* part_suffix = ".part";
constexpr const char* record_suffix = ".part.json";
constexpr const char* lock_suffix = ".part.lock";

/// What is predicted of chunks of samples, on the CPU.
class Predictor {
 public:
  Predictor(models::Model& model, kernels::Backend& backend, const data::Dataset& dataset,
            const PredictOptions& options)
      : model_(model),
        dataset_(dataset),
        options_(options),
        lengths_(data::has_field(dataset, model.output_lengths()) ? model.output_lengths() : ""),
        tape_(backend),
        batches_(dataset, std::clamp<std::int64_t>(1024 / std::max<std::int64_t>(1, model.context()), 1, 64),
                 0, 1) {
    if (const std::string field = model.output_rows(); !field.empty()) {
      ragged_ = data::field_number(dataset, field);
      if (!dataset.fields()[*ragged_].ragged)
        throw DataError("{}: field {}, whose rows the model's output has, is not ragged", dataset.name(),
                        field);
      if (CsvTable::is_name(options.out))
        throw UsageError(
            "--out: the output has the rows of {}, which differ in number; write a file .h5 with "
            "/output_offsets",
            field);
      offsets_.push_back(0);
      for (std::int64_t sample = 0; sample < dataset.size(); ++sample)
        offsets_.push_back(offsets_.back() + dataset.rows(*ragged_, {&sample, 1}));
    }
    for (std::int64_t i = 0; i < dataset.size() && (i > 0 || !dataset.row_name(0).empty()); ++i)
      name_bytes_ = std::max(name_bytes_, std::ssize(dataset.row_name(i)));
  }

  int chunks() const { return batches_.chunks(); }

  /// row, label and probability if they are known, output.
  std::vector<Rows> rows_of(int chunk) {
    const Batch& batch = batches_.read(chunk);
    const Tensor output = output_of(batch);
    std::vector<Rows> all{names_of(first_sample(chunk), batch.samples())};
    const bool ragged = ragged_.has_value();
    if (options_.meaning.output != OutputMeaning::regression) {
      const auto [labels, probabilities] = labels_and_probabilities(output, options_.meaning.output);
      all.push_back({.name = "label", .values = labels, .ragged = ragged});
      all.push_back({.name = "probability", .values = probabilities, .ragged = ragged});
    }
    all.push_back({.name = "output", .values = output, .ragged = ragged});
    return all;
  }
  std::int64_t first_sample(std::int64_t chunk) const { return batches_.first_sample(chunk); }
  /// The first row of a chunk in a dataset of the file.
  std::uint64_t first_row(std::int64_t chunk, const Rows& rows) const {
    const std::int64_t sample = first_sample(chunk);
    return static_cast<std::uint64_t>(rows.ragged ? offsets_[static_cast<std::size_t>(sample)] : sample);
  }
  /// Where the rows of each sample begin in ragged outputs, and the end; empty: they are not ragged.
  const std::vector<std::int64_t>& offsets() const { return offsets_; }
  /// How many steps of each sample's output exist; the others are NaN. Empty: all.
  std::vector<double> lengths(const Tensor& output) const {
    return has_lengths(output) ? dataset_.column(lengths_) : std::vector<double>();
  }

 private:
  bool has_lengths(const Tensor& output) const {
    const int without_steps = options_.meaning.output == OutputMeaning::classes ? 2 : 1;
    return !lengths_.empty() && output.shape().rank() > without_steps;
  }

  Rows names_of(std::int64_t first, std::int64_t count) const {
    if (name_bytes_ == 0) {
      const Tensor numbers = Tensor::empty({count}, DType::int64);
      std::iota(numbers.data<std::int64_t>(), numbers.data<std::int64_t>() + count, first);
      return {.name = "row", .values = numbers};
    }
    const Tensor texts = Tensor::zeros({count, name_bytes_ + 1}, DType::uint8);
    for (std::int64_t i = 0; i < count; ++i)
      std::ranges::copy(dataset_.row_name(first + i), texts.data<std::uint8_t>() + i * texts.size(1));
    return {.name = "row", .values = texts, .texts = true};
  }

  Tensor output_of(const Batch& batch) {
    progress::tick();
    tape_.begin({.training = false,
                 .record = false,
                 .compute = options_.compute,
                 .same_parameters = std::exchange(begun_, true)});
    Tensor output;
    try {
      kernels::Backend& backend = tape_.backend();
      const Batch there = batch.map([&](const Tensor& field) { return kernels::on_device(field, backend); });
      const Var found = to_channel_block(model_(tape_, there), 1);
      output = backend.in_type(found.value(), DType::float32);
      if (has_lengths(output)) output = keep_steps(tape_, output, there[lengths_], std::nan(""));
      output = kernels::on_cpu(output, &backend);
    } catch (const UsageError& error) {  // the data do not fit the model
      throw DataError("{}: {}", dataset_.name(), error.what());
    }
    const Shape& shape = output.shape();
    const std::int64_t rows = ragged_ ? batch.tensors()[*ragged_].size(0) : batch.samples();
    if (shape.rank() == 0 || shape[0] != rows)
      throw UsageError("the model's output for {} samples is {}: it must have {}", batch.samples(),
                       to_string(shape),
                       ragged_             ? fmt::format("the {} rows of {}", rows, batch.names()[*ragged_])
                       : batch.is_ragged() ? "one row a sample, or Model::output_rows() names a ragged field"
                                           : "one row a sample");
    if (options_.log_probabilities) {
      const Tensor of_targets = Tensor::empty(batch["y"].shape());
      log_probabilities_of(output, batch["y"], of_targets);
      return of_targets;
    }
    if (options_.units) {
      const Tensor own = Tensor::empty(shape);
      std::copy_n(output.data<float>(), output.numel(), own.data<float>());
      in_own_units(*options_.units, own);
      return own;
    }
    return output;
  }

  models::Model& model_;
  const data::Dataset& dataset_;
  const PredictOptions& options_;
  std::string lengths_;  // a field; empty: all steps of the output exist
  Tape tape_;
  data::EvalBatches batches_;
  std::optional<std::size_t> ragged_;  // the field whose rows the output has
  std::vector<std::int64_t> offsets_;
  std::int64_t name_bytes_ = 0;  // of the longest; 0: samples have numbers
  bool begun_ = false;
};

/// OUT.part, which becomes OUT or its table, and OUT.part.json, a record of the arguments and of the finished
/// chunks. A record without OUT.part is ignored.
class Unfinished {
 public:
  /// chunk: of any samples, for the form of the datasets. offsets: of ragged outputs.
  Unfinished(const PredictOptions& options, std::vector<Rows> chunk, std::int64_t samples,
             const std::vector<std::int64_t>& offsets)
      : options_(options),
        chunk_(std::move(chunk)),
        samples_(samples),
        offsets_(offsets),
        path_(options.out + part_suffix),
        record_path_(options.out + record_suffix) {
    if (CsvTable::is_name(options.out)) CsvTable(chunk_, options.meaning);
  }

  /// A chunk, with the offsets of the datasets after open().
  const std::vector<Rows>& chunk() const { return chunk_; }

  /// The number of finished chunks, of `chunks`. UsageError if the file was begun with other arguments.
  std::int64_t open(std::int64_t chunks) {
    if (exists(path_)) {
      const std::int64_t done = done_by_record();
      lay_out();
      if (done < 0 || done > chunks || OpenFile(path_, OpenFile::Mode::read).size() != file_bytes_)
        throw_not_ours();
      return done;
    }
    OpenFile file(temporary_path(path_), OpenFile::Mode::create_or_truncate);
    Draft draft(file.path());  // a failed start leaves no file
    // A file that may not grow to its size must be an error here, not inside HDF5.
    std::uint64_t bytes = 0;
    for (const Rows& rows : chunk_) bytes += rows.row_bytes() * static_cast<std::uint64_t>(count_of(rows));
    file.truncate(bytes);
    lay_out();
    file.truncate(file_bytes_);
    structure_.copy_to(file, 0, structure_.size());
    for (const auto& [offset, texts] : texts_) file.write_at(offset, texts.data(), texts.size());
    file.sync();
    record(0);
    draft.publish(path_, false);
    return 0;
  }
  /// Call it when these chunks are on storage.
  void record(std::int64_t done) const {
    write_text_atomically(record_path_, json_text({{"arguments", options_.arguments}, {"done", done}}));
  }
  /// The number of rows of outputs that are not finite, and the first of them. lengths: Predictor::lengths().
  std::pair<std::int64_t, std::int64_t> not_finite(const std::vector<double>& lengths) const {
    const Rows& output = chunk_.back();
    const OpenFile part(path_, OpenFile::Mode::read);
    std::vector<std::byte> row(output.row_bytes());
    std::pair<std::int64_t, std::int64_t> found;
    for (std::int64_t i = 0; i < count_of(output); ++i) {
      progress::tick();
      if (!lengths.empty())
        row.resize(output.row_bytes() / static_cast<std::uint64_t>(output.values.size(1)) *
                   static_cast<std::uint64_t>(lengths[static_cast<std::size_t>(i)]));
      part.read_at(output.offset + static_cast<std::uint64_t>(i) * output.row_bytes(), row.data(),
                   row.size());
      if (!checkpoint::all_finite(row, DType::float32) && found.first++ == 0) found.second = i;
    }
    return found;
  }
  /// Makes OUT of OUT.part, which is on storage. After an error a later call can repeat it.
  void publish() const {
    check_output(options_.out, {.replace = options_.replace, .inputs = options_.inputs});
    if (CsvTable::is_name(options_.out)) {
      OpenFile table(temporary_path(options_.out), OpenFile::Mode::create_or_truncate);
      Draft draft(table.path());
      CsvTable(chunk_, options_.meaning).write(table, OpenFile(path_, OpenFile::Mode::read), samples_);
      table.sync();
      draft.publish(options_.out, options_.replace);
      remove_file(path_);
    } else {
      rename_file(path_, options_.out);
    }
    sync_directory(directory_of(options_.out));
    remove_file(record_path_);
  }

 private:
  /// The rows of a dataset.
  std::int64_t count_of(const Rows& rows) const { return rows.ragged ? offsets_.back() : samples_; }

  /// The same structure for the same options and rows.
  void lay_out() {
    hdf5::File file = hdf5::File::create(
        structure_.path(), {.existing = hdf5::CreateOptions::Existing::replace, .checksummed = true});
    structure_.unlink();
    const auto place = [&](const hdf5::Extent& extent) {
      file_bytes_ = std::max(file_bytes_, extent.offset + extent.bytes);
      return extent.offset;
    };
    for (Rows& rows : chunk_) {
      const Tensor& values = rows.values;
      std::vector<std::int64_t> extents(values.shape().begin(), values.shape().end());
      extents[0] = count_of(rows);
      hdf5::Dataset dataset = rows.texts
                                  ? file.create_texts(rows.name, static_cast<std::size_t>(values.size(1)) - 1,
                                                      {extents.data(), 1})
                                  : file.create_dataset(rows.name, values.dtype(), extents);
      if (rows.name == "output" && !options_.meaning.units.empty())
        dataset.set_attribute("units", options_.meaning.units);
      rows.offset = place(dataset.extent());
      if (!rows.ragged) continue;
      const std::int64_t count = std::ssize(offsets_);
      const std::uint64_t at =
          place(file.create_dataset(rows.name + data::offsets_suffix, DType::int64, {count}).extent());
      texts_.emplace_back(at, std::string(reinterpret_cast<const char*>(offsets_.data()),
                                          offsets_.size() * sizeof offsets_[0]));
    }
    const auto add_texts = [&](const char* name, const std::vector<std::string>& all) {
      if (all.empty()) return;
      const std::size_t bytes = std::ranges::max_element(all, {}, &std::string::size)->size();
      const std::int64_t count = std::ssize(all);
      const std::uint64_t offset = place(file.create_texts(name, bytes, {&count, 1}).extent());
      std::string& texts = texts_.emplace_back(offset, "").second;
      for (const std::string& text : all) texts += text + std::string(bytes + 1 - text.size(), '\0');
    };
    if (chunk_.size() > 2) add_texts("classes", options_.meaning.classes);
    if (std::ssize(options_.meaning.names) == chunk_.back().row_elements())
      add_texts("names", options_.meaning.names);
    for (const auto& attribute : options_.attributes)
      std::visit([&](const auto& value) { file.set_attribute(attribute.first, value); }, attribute.second);
    file.close();
    file_bytes_ = std::max(file_bytes_, structure_.size());
  }

  std::int64_t done_by_record() const {
    std::map<std::string, std::string> before;
    std::int64_t done = 0;
    try {
      const nlohmann::json record = nlohmann::json::parse(read_text(record_path_));
      record.at("arguments").get_to(before);
      record.at("done").get_to(done);
    } catch (const std::exception&) {
      throw_not_ours();
    }
    for (const auto& [name, value] : options_.arguments) {
      const auto then = before.find(name);  // an earlier version may have recorded fewer
      if (then == before.end() || then->second == value) continue;
      throw UsageError("{}: was begun with another {} ({}, now {}); give the same arguments, or remove it",
                       path_, name, quote(then->second), quote(value));
    }
    return done;
  }

  [[noreturn]] void throw_not_ours() const {
    throw UsageError("{}: is not an unfinished file of lockstep predict; remove it", path_);
  }

  const PredictOptions& options_;
  std::vector<Rows> chunk_;
  const std::int64_t samples_;
  const std::vector<std::int64_t> offsets_;
  std::vector<std::pair<std::uint64_t, std::string>> texts_;  // by offset: datasets that no chunk has
  std::string path_, record_path_;
  checkpoint::MemoryFile structure_;
  std::uint64_t file_bytes_ = 0;
};

/// Requests of a rank between two rounds of chunks, as bits.
constexpr std::uint64_t preempt = 1, user_stop = 2, record = 4, longer_rounds = 8;

}  // namespace

std::pair<Tensor, Tensor> labels_and_probabilities(const Tensor& logits, OutputMeaning meaning) {
  const Shape& shape = logits.shape();
  const bool binary = meaning == OutputMeaning::binary;
  if (!binary && shape.rank() < 2)
    throw UsageError("the model's output is {}: that of classes is [samples, ..., classes]",
                     to_string(shape));
  const std::int64_t classes = binary ? 1 : shape[-1];
  const bool keeps_last = binary && (shape.rank() == 1 || shape[-1] > 1);
  const Shape of_labels(shape.extents().first(static_cast<std::size_t>(shape.rank() - !keeps_last)));
  const Tensor labels = Tensor::empty(of_labels, DType::int64),
               probabilities = Tensor::empty(binary ? of_labels : shape);
  const float* row = logits.data<float>();
  float* probability = probabilities.data<float>();
  for (std::int64_t i = 0; i < labels.numel(); ++i, row += classes, probability += classes) {
    const float* const greatest = std::max_element(row, row + classes);  // the first of equal ones
    const auto above = [&](double logit) { return std::exp(logit - *greatest); };
    double sum = binary ? above(0) : 0;
    for (std::int64_t c = 0; c < classes; ++c) sum += above(row[c]);
    for (std::int64_t c = 0; c < classes; ++c) probability[c] = static_cast<float>(above(row[c]) / sum);
    labels.data<std::int64_t>()[i] = std::isnan(sum) ? -1 : binary ? *row > 0 : greatest - row;
    if (std::isnan(sum)) std::fill_n(probability, classes, std::nanf(""));
  }
  return {labels, probabilities};
}

ExitCode predict(Session& session, models::Model& model, const data::Dataset& dataset,
                 const PredictOptions& options, StopRequests& requests) {
  constexpr double record_every_s = 10, round_ms = 50, lock_wait_s = 15;
  constexpr std::int64_t max_chunks_a_round = std::int64_t{1} << 16;  // of a rank
  comm::HostGroup& world = session.world();
  const bool leads = world.rank() == 0;
  comm::run_on_all(world, [&] {
    if (!leads) return;
    check_ending(options.out);
    check_output(options.out, {.replace = options.replace, .inputs = options.inputs});
    for (const char* const suffix : {part_suffix, record_suffix, lock_suffix})
      check_output(options.out + suffix, {.replace = true, .inputs = options.inputs});
  });
  std::optional<checkpoint::FileLock> lock;  // excludes a second writer
  comm::run_on_all(world, [&] {
    if (!leads) return;
    lock.emplace(
        options.out + lock_suffix, lock_wait_s,
        [&](const std::string& line) { session.log().warning("{}", line); }, options.out);
  });
  std::optional<Predictor> predictor;
  std::vector<Rows> first;
  comm::run_on_all(world, [&] {
    predictor.emplace(model, session.backend(), dataset, options);
    first = predictor->rows_of(0);
  });
  std::optional<Unfinished> unfinished;
  std::vector<std::uint64_t> begun(1 + first.size());  // finished chunks, and the offset of each dataset
  comm::run_on_all(world, [&] {
    if (!leads) return;
    unfinished.emplace(options, first, dataset.size(), predictor->offsets());
    begun[0] = static_cast<std::uint64_t>(unfinished->open(predictor->chunks()));
    std::ranges::transform(unfinished->chunk(), begun.begin() + 1, &Rows::offset);
  });
  world.broadcast(begun.data(), begun.size() * sizeof begun[0], 0);
  std::optional<OpenFile> part;
  comm::run_on_all(world, [&] {
    part.emplace(options.out + part_suffix, OpenFile::Mode::write, checkpoint::name_delay_s(world));
  });
  const std::int64_t chunks = predictor->chunks();
  auto done = static_cast<std::int64_t>(begun[0]);
  const auto samples = [&] { return predictor->first_sample(done); };
  if (done > 0)
    session.log().info("{}: continues after {} of {} samples", part->path(), samples(), dataset.size());

  std::int64_t chunks_a_round = 1;  // of a rank: as many as keep rank 0 busy for about round_ms
  Stopwatch since_record, since_round;
  std::uint64_t request_bits = 0;
  const auto make = [&](std::int64_t, const std::function<void()>&) {
    since_round.restart();
    const std::int64_t from = std::min(done + world.rank() * chunks_a_round, chunks);
    for (std::int64_t chunk = from; chunk < std::min(from + chunks_a_round, chunks); ++chunk) {
      const std::vector<Rows> all = predictor->rows_of(static_cast<int>(chunk));
      for (std::size_t i = 0; i < all.size(); ++i) {
        const Tensor& rows = all[i].values;
        part->write_at(begun[1 + i] + predictor->first_row(chunk, all[i]) * all[i].row_bytes(), rows.raw(),
                       rows.bytes());
      }
    }
  };
  const auto requests_of_rank = [&] {
    const ddp::Requests pending = requests.pending();
    const bool due = leads && since_record.elapsed_ms() > record_every_s * 1e3;
    const bool quick = leads && since_round.elapsed_ms() < round_ms;
    return preempt * pending.stop_preempted | user_stop * pending.stop_user | record * due |
           longer_rounds * quick;
  };
  // The chunks of the record are on storage.
  const auto act = [&](std::uint64_t of_any, double) {
    request_bits = of_any & (preempt | user_stop);
    done = std::min(done + world.size() * chunks_a_round, chunks);
    chunks_a_round = of_any & longer_rounds ? std::min(2 * chunks_a_round, max_chunks_a_round)
                                            : std::max<std::int64_t>(chunks_a_round / 2, 1);
    if ((of_any & record) == 0 && request_bits == 0 && done < chunks) return true;
    comm::run_on_all(world, [&] { part->sync(); });
    comm::run_on_all(world, [&] {
      if (leads) unfinished->record(done);
    });
    since_record.restart();
    const bool continues = done < chunks && request_bits == 0;
    if (continues) session.log().info("{} of {} samples", samples(), dataset.size());
    return continues;
  };
  if (done < chunks) run(world, Rounds{.make = make, .watch = {requests_of_rank, act}});
  if (done < chunks) {
    requests.clear(
        {.stop_preempted = (request_bits & preempt) != 0, .stop_user = (request_bits & user_stop) != 0});
    session.log().info("{} after {} of {} samples; the same command continues {}",
                       request_bits & preempt ? "preempted" : "stopped as asked", samples(), dataset.size(),
                       part->path());
    return request_bits & preempt ? ExitCode::preempted : ExitCode::user_stopped;
  }
  comm::run_on_all(world, [&] {
    if (!leads) return;
    const auto [count, first_one] = unfinished->not_finite(predictor->lengths(first.back().values));
    unfinished->publish();
    if (count > 0)
      session.log().warning("{}: {} of {} {} have outputs that are not finite, the first is number {}{}",
                            options.out, count,
                            predictor->offsets().empty() ? dataset.size() : predictor->offsets().back(),
                            predictor->offsets().empty() ? "samples" : "rows", first_one,
                            first.size() > 2 ? "; without probabilities the label is -1" : "");
  });
  return ExitCode::done;
}

}  // namespace lockstep::train
