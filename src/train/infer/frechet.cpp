#include "train/infer/frechet.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "base/progress.h"
#include "base/text.h"
#include "lockstep/autograd/functions.h"
#include "lockstep/autograd/tape.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/file.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/pictures.h"
#include "train/components.h"
#include "train/data_sets.h"
#include "train/infer/chunks.h"

namespace lockstep::train {
namespace {

using Matrix = Eigen::MatrixXd;

Eigen::Map<const Matrix> matrix_of(const std::vector<double>& values) {
  const auto width = static_cast<Eigen::Index>(std::llround(std::sqrt(static_cast<double>(values.size()))));
  return {values.data(), width, width};
}

/// For a covariance, whose eigenvalues are below 0 only by rounding.
Matrix root_of(const Matrix& covariance) {
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(covariance);
  return solver.eigenvectors() * solver.eigenvalues().cwiseMax(0).cwiseSqrt().asDiagonal() *
         solver.eigenvectors().transpose();
}

}  // namespace

void FeatureStatistics::add(const Tensor& features) {
  const Shape& shape = features.shape();
  const std::int64_t rows = shape[0],
                     width = shape.rank() > 1 ? features.numel() / std::max<std::int64_t>(1, rows) : 1;
  const float* values = features.data<float>();
  if (count_ == 0) {
    first_.assign(values, values + width);
    sum_.assign(first_.size(), 0);
    products_.assign(first_.size() * first_.size(), 0);
  }
  if (width != this->width())
    throw UsageError("features have {} numbers, but earlier ones have {}", width, this->width());
  Matrix chunk(width, rows);
  for (std::int64_t n = 0; n < rows; ++n)
    for (std::int64_t f = 0; f < width; ++f, ++values)
      chunk(f, n) = static_cast<double>(*values) - first_[static_cast<std::size_t>(f)];
  Eigen::Map<Eigen::VectorXd>(sum_.data(), width) += chunk.rowwise().sum();
  Eigen::Map<Matrix>(products_.data(), width, width).selfadjointView<Eigen::Lower>().rankUpdate(chunk);
  count_ += rows;
}

std::vector<double> FeatureStatistics::mean() const {
  std::vector<double> mean(first_);
  for (std::size_t f = 0; f < mean.size(); ++f) mean[f] += sum_[f] / static_cast<double>(count_);
  return mean;
}

std::vector<double> FeatureStatistics::covariance() const {
  const std::size_t width = first_.size();
  const auto count = static_cast<double>(count_);
  std::vector<double> covariance(width * width);
  for (std::size_t i = 0; i < width; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {  // products_ holds column j from its diagonal on
      const double value = (products_[j * width + i] - sum_[i] * sum_[j] / count) / (count - 1);
      covariance[i * width + j] = covariance[j * width + i] = value;
    }
  }
  return covariance;
}

double frechet_distance(const FeatureStatistics& a, const FeatureStatistics& b) {
  if (a.width() != b.width() || a.count() < 2 || b.count() < 2)
    throw UsageError("the distance of {} rows of {} features and {} rows of {} is undefined", a.count(),
                     a.width(), b.count(), b.width());
  const std::vector<double> mean_a = a.mean(), mean_b = b.mean(), of_a = a.covariance(),
                            of_b = b.covariance();
  double distance = 0;
  for (std::size_t f = 0; f < mean_a.size(); ++f)
    distance += (mean_a[f] - mean_b[f]) * (mean_a[f] - mean_b[f]);
  const Matrix covariance_a = matrix_of(of_a), covariance_b = matrix_of(of_b);
  distance += covariance_a.trace() + covariance_b.trace();
  if (!std::isfinite(distance)) return std::numeric_limits<double>::quiet_NaN();
  // (A B)^(1/2) has the trace of (A^(1/2) B A^(1/2))^(1/2), which is symmetric.
  const Matrix root = root_of(covariance_a);
  const Matrix inner = root * covariance_b * root;
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(Matrix((inner + inner.transpose()) / 2),
                                                     Eigen::EigenvaluesOnly);
  distance -= 2 * solver.eigenvalues().cwiseMax(0).cwiseSqrt().sum();
  return std::max(0.0, distance);
}

struct FeatureExtractor::Classifier {
  std::string path;
  comm::HostGroup& world;
  kernels::Backend& backend;
  std::optional<StoredRange> range;
  std::unique_ptr<Model> model;
  std::vector<std::unique_ptr<DataSets>> files;  // of data.train
  Shape input;                                   // of a sample that it reads
  std::optional<data::Normalization> by;         // none: it reads stored values
  std::optional<FeatureStatistics> of_data;

  Tensor features_of(const Batch& batch) const {
    progress::tick();
    Tape tape(backend);
    tape.begin({.training = false, .record = false});
    const Batch there = batch.map([&](const Tensor& field) { return kernels::on_device(field, backend); });
    const std::optional<Var> found = model->features(tape, there);
    if (!found) throw UsageError("sample.features: {}: its model has no features to compare", path);
    return kernels::on_cpu(backend.in_type(to_channel_block(*found, 1).value(), DType::float32), &backend);
  }
  void check_samples(const Shape& made, std::int64_t elements) const {
    if (elements != input.numel())
      throw UsageError("sample.features: {}: the classifier takes samples {}, but the model makes {}", path,
                       to_string(input), to_string(made));
  }
};

FeatureExtractor::FeatureExtractor(const Config& config, const std::optional<StoredRange>& range,
                                   const Shape& sample, comm::HostGroup& world, kernels::Backend& backend)
    : classifier_(new Classifier{.path = config.sample.features,
                                 .world = world,
                                 .backend = backend,
                                 .range = range,
                                 .model = {},
                                 .files = {},
                                 .input = {},
                                 .by = {},
                                 .of_data = {}}) {
  Classifier& of = *classifier_;
  const checkpoint::FileIndex index = checkpoint::read_index(of.path, world);
  Config classifier;
  std::vector<std::string> paths;
  comm::run_on_all(world, [&] {
    if (index.config.empty())
      throw UsageError("sample.features: {}: has no configuration, so its model cannot be built", of.path);
    classifier = parse_stored_config(index.config, of.path + " /config", *config.registries);
    const auto format = index.provenance.find(format_provenance);
    if (classifier.data.format.empty() && format != index.provenance.end())
      classifier.data.format = format->second;
    if (classifier.data.format == "arrays" && !config.data.fields.empty())
      classifier.data.fields = config.data.fields;
    of.model = build_model_of_file(classifier);
    const std::vector<TrainingFile> files = training_files(config.data);
    if (std::ranges::any_of(files, [](const TrainingFile& file) { return file.weight.has_value(); }))
      throw UsageError(
          "sample.features: compares with all samples of data.train, each once, but its files have weights; "
          "remove the weights or sample.features");
    for (const TrainingFile& file : files) paths.push_back(file.path);
    if (paths.empty()) throw UsageError("sample.features: data.train names no files to compare with");
  });
  classifier.data.pictures.labels.clear();  // features need no classes
  classifier.data.listings = std::make_shared<const data::PictureListings>(
      data::list_folders(paths, classifier.data.pictures, world));
  comm::run_on_all(world, [&] {
    LearnedFrom from = learned_from(index);
    std::erase_if(from.fields, [](const auto& field) { return field.first != "x"; });
    for (const std::string& path : paths)
      of.files.push_back(std::make_unique<DataSets>(classifier, *of.model, path, from, false));
    const data::Dataset& data = *of.files.front()->eval();
    check_inputs(*of.model, data);
    of.input = data::field_named(data, "x").shape;
    if (sample.rank() > 0) of.check_samples(sample, sample.numel());
    of.by = data.meaning("x").by;
  });
  checkpoint::load_weights(index, *of.model, world, index.default_weights(), {.finite = false});
  of.model->to(backend);
  comm::run_on_all(world, [&] {
    data::EvalBatches one(*of.files.front()->eval(), 1, 0, 1);
    of.features_of(one.read(0));
  });
}

FeatureExtractor::~FeatureExtractor() = default;

Tensor FeatureExtractor::of_samples(const Tensor& samples) const {
  const Classifier& of = *classifier_;
  const std::int64_t rows = samples.size(0), elements = samples.numel() / std::max<std::int64_t>(1, rows);
  of.check_samples(samples.shape(), elements);
  const std::span<const float> values(samples.data<float>(), static_cast<std::size_t>(samples.numel()));
  const std::vector<double> stored =
      of.range ? of.range->stored_values(values) : std::vector<double>(values.begin(), values.end());
  const Tensor x = Tensor::empty(data::batch_shape(rows, of.input));
  const std::int64_t channels = of.by ? std::ssize(of.by->mean) : 1, block = elements / channels;
  for (std::int64_t e = 0; e < x.numel(); ++e) {
    double value = stored[static_cast<std::size_t>(e)];
    if (of.by) {
      const auto channel = static_cast<std::size_t>(e % elements / block);
      value = (value - of.by->mean[channel]) / of.by->deviation[channel];
    }
    x.data<float>()[e] = static_cast<float>(value);
  }
  return of.features_of(Batch(0, {{"x", x}}));
}

bool FeatureExtractor::has_data() const { return classifier_->of_data.has_value(); }

const FeatureStatistics* FeatureExtractor::of_data(const EvaluationWatch& watch) {
  constexpr std::int64_t chunk = 64;
  Classifier& of = *classifier_;
  if (of.of_data) return &*of.of_data;
  FeatureStatistics made;
  const auto files = static_cast<double>(of.files.size());
  for (std::size_t f = 0; f < of.files.size(); ++f) {
    const data::Dataset& dataset = *of.files[f]->eval();
    data::EvalBatches batches(dataset, chunk, 0, 1);
    const auto features = [&](std::int64_t first, std::int64_t, const std::function<void()>& step) {
      Tensor found = of.features_of(batches.read(static_cast<int>(first / chunk)));
      step();
      return found;
    };
    if (!run(of.world, OrderedChunks{.rows = dataset.size(),
                                     .chunk = chunk,
                                     .make = features,
                                     .take = [&](std::int64_t, const Tensor& rows) { made.add(rows); },
                                     .watch = watch.part(static_cast<double>(f) / files,
                                                         static_cast<double>(f + 1) / files)}))
      return nullptr;
  }
  return &of.of_data.emplace(std::move(made));
}

}  // namespace lockstep::train
