// TrainingSamples: pictures or texts of samples during a run, [sample].
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/optim/ema.h"
#include "train/config.h"
#include "train/data_sets.h"
#include "train/infer/frechet.h"
#include "train/infer/generate.h"
#include "train/infer/sample.h"
#include "train/run/evaluations.h"
#include "train/run/run_logs.h"
#include "train/run/weights_in_use.h"

namespace lockstep::train {

/// The parts of sampling in a run, which outlive the samples.
struct TrainingSamplesParts {
  comm::HostGroup& world;
  kernels::Backend& backend;
  Model& model;
  Task& task;
  WeightsInUse& weights;  ///< of the model
  const DataSets& data;
  DType compute = DType::float32;  ///< Pass::compute
};

/// After every sample.every steps, a picture of each of sample.weights: RUN/samples/step-STEP-WEIGHTS.png, or
/// of a language model the texts that continue sample.prompts, .txt; also for TensorBoard. With
/// sample.features also the distance of samples to the data, a metric of
/// evaluations. The noise is the same every time.
class TrainingSamples {
 public:
  /// UsageError for a task that cannot make samples, weights that the run does not have, and options that the
  /// task rejects; with sample.features also the errors of FeatureExtractor. Checks nothing if neither is
  /// configured. Collective.
  TrainingSamples(const Config& config, const TrainingSamplesParts& parts, const std::string& run);

  bool due_after(std::int64_t step) const { return every_ > 0 && step > 0 && step % every_ == 0; }
  /// Makes the files that are due after this step; with `only_missing`, for a resume, only missing ones. One
  /// that cannot be written is a warning, and so is one with a sample that is not finite, which is left out.
  /// False if the watch ended it. Collective; the same error on every rank.
  bool after_step(std::int64_t step, RunLogs& logs, const EvaluationWatch& watch, bool only_missing = false);

  /// frechet, with sample.features.
  std::vector<MeasuredMetric> metrics();

 private:
  void check_weights(const SampleConfig& config);
  void check_pictures(const SampleConfig& config);
  void prepare_texts(const Config& config);
  std::optional<double> frechet(const EvaluationWatch& watch);
  /// "model", "ema-0.999".
  static std::string file_part(const std::string& weights);
  /// The place of a picture.
  struct PicturePlace {
    std::int64_t step;
    const std::string& tag;  // in TensorBoard
    const std::string& path;
  };
  /// On rank 0.
  static void record(const PicturePlace& place, const SampledPicture& picture, RunLogs& logs,
                     bool only_missing);
  /// Writes the texts of the weights in use, on rank 0.
  void record_texts(const PicturePlace& place, RunLogs& logs, bool only_missing);
  std::string texts();  // of the weights in use

  TrainingSamplesParts parts_;
  std::int64_t every_;
  std::string folder_;
  std::vector<std::string> weights_;
  std::optional<Sampler> sampler_;              // of pictures; none if nothing is configured
  std::unique_ptr<data::Tokenizer> tokenizer_;  // of texts; null: pictures
  std::vector<Tokens> prompts_;
  GenerateOptions text_options_;
  std::unique_ptr<FeatureExtractor> features_;
  std::optional<Sampler> compared_;  // whose results are features
};

}  // namespace lockstep::train
