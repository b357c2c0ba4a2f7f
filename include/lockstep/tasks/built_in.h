// The tasks that every program has: classification, language, regression and binary. If a batch has the field
// that Model::output_lengths() names, only so many steps of y and of the output [N, T, ...] count, in losses
// and in metrics.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/option.h"
#include "lockstep/tasks/task.h"

namespace lockstep::tasks {

/// The class of a sample: field y, int64; -100 counts nowhere. Metrics: loss (cross entropy), accuracy,
/// accuracy_top5 where there are more than five classes, and with per_class accuracy_class_K for each.
class Classification final : public Task {
 public:
  struct Options {
    bool per_class = false;      ///< whether evaluations have accuracy_class_K
    double label_smoothing = 0;  ///< train.label_smoothing; not in evaluations

    static std::vector<Option<Options>> options();
  };
  explicit Classification(const Options& options) : options_(options) {}  ///< for a configuration

  std::vector<Metric> metrics() const override;
  void check(const Model& model, const data::Dataset& data) override;
  Loss loss(Tape& tape, Model& model, const Batch& batch) override;
  void evaluate(Evaluation& to, const Batch& batch, const Var& output) override;
  OutputMeaning output_meaning() const override { return OutputMeaning::classes; }

 private:
  Options options_;
  std::int64_t classes_ = 0;
  std::string lengths_;  // Model::output_lengths()
};

/// The next token: field y, int64 [T]. Metrics: loss (cross entropy per token), perplexity and, where the
/// data knows how long its text is, bits_a_byte: the loss in bits for each byte of it, which tokenizers
/// share.
class Language final : public Task {
 public:
  struct Options {
    double label_smoothing = 0;  ///< train.label_smoothing; not in evaluations

    static std::vector<Option<Options>> options() { return {}; }
  };
  explicit Language(const Options& options) : options_(options) {}  ///< for a configuration

  std::vector<Metric> metrics() const override;
  void check(const Model& model, const data::Dataset& data) override;
  Loss loss(Tape& tape, Model& model, const Batch& batch) override;
  void evaluate(Evaluation& to, const Batch& batch, const Var& output) override;

 private:
  Options options_;
  double bytes_a_token_ = 0;  // of the last data set; 0: not known
};

/// Numbers: field y, floats of the output's shape. Metrics: loss, rmse, mae, and r2, the explained part of
/// the targets' variance (1 - sum (y - output)^2 / sum (y - mean y)^2), over all elements.
class Regression final : public Task {
 public:
  struct Options {
    std::string loss = "mse";  ///< or l1, smooth_l1
    double beta = 1;           ///< of smooth_l1

    static std::vector<Option<Options>> options();
  };
  explicit Regression(const Options& options) : options_(options) {}  ///< for a configuration

  std::vector<Metric> metrics() const override;
  void check(const Model& model, const data::Dataset& data) override;
  Loss loss(Tape& tape, Model& model, const Batch& batch) override;
  void evaluate(Evaluation& to, const Batch& batch, const Var& output) override;
  std::string target() const override { return "y"; }

 private:
  Options options_;
  std::string lengths_;  // Model::output_lengths()
};

/// Yes or no: field y, 1 or 0 (integers) or probabilities (floats), of the shape of the output, which is a
/// logit. Metrics: loss (binary cross entropy) and accuracy.
class Binary final : public Task {
 public:
  struct Options {
    static std::vector<Option<Options>> options() { return {}; }
  };
  explicit Binary(const Options&) {}  ///< for a configuration

  std::vector<Metric> metrics() const override;
  void check(const Model& model, const data::Dataset& data) override;
  Loss loss(Tape& tape, Model& model, const Batch& batch) override;
  void evaluate(Evaluation& to, const Batch& batch, const Var& output) override;
  OutputMeaning output_meaning() const override { return OutputMeaning::binary; }

 private:
  std::string lengths_;  // Model::output_lengths()
};

}  // namespace lockstep::tasks
