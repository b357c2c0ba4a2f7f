// Prediction: a model's outputs for every sample of a data set, in order, as one HDF5 file or CSV table.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/data/arrays.h"
#include "lockstep/data/dataset.h"
#include "lockstep/models/model.h"
#include "lockstep/train/session.h"
#include "lockstep/train/stop.h"

namespace lockstep::train {

/// What an output means.
struct PredictionMeaning {
  OutputMeaning output = OutputMeaning::regression;
  std::vector<std::string> classes{};  ///< names of labels 0, 1, 2 ...; empty: they have none
  std::vector<std::string> names{};    ///< of the elements of a sample's output; empty: they have none
  std::string units{};                 ///< of them; empty: not known
};

/// Of logits labels, int64 [N, ...] of [N, ..., C], and float32 probabilities of their shape; of
/// OutputMeaning::binary both [N, ...], or [N] of [N, 1]. Logits without probabilities (NaN, inf) have label
/// -1 and probabilities NaN. UsageError if the logits have no classes.
std::pair<Tensor, Tensor> labels_and_probabilities(const Tensor& logits, OutputMeaning meaning);

struct PredictOptions {
  std::string out;                    ///< ends with .csv: a table
  bool replace = false;               ///< an existing file
  std::vector<std::string> inputs{};  ///< files and folders that OUT and OUT.part must not replace
  /// Everything that decides the outputs, by name: an unfinished file of other arguments is not continued.
  std::map<std::string, std::string> arguments{};
  PredictionMeaning meaning{};
  std::map<std::string, checkpoint::AttributeValue> attributes{};  ///< of the file
  /// Instead of a language model's logits [T, V] the log probabilities [T] of its targets, field y.
  bool log_probabilities = false;
  /// The outputs are in normalised units: they become output * deviation + mean.
  std::optional<data::Normalization> units{};
  DType compute = DType::float32;
};

/// Writes /output float32 [N, ...]; /row, the names of the samples or int64 numbers; of classes /label int64,
/// /probability float32 and /classes; /names of the elements. Or of these a table, when all is predicted. The
/// bytes of the file depend on the model, the data and the options, not on the number of ranks. Until it is
/// complete its name is OUT.part, with its record OUT.part.json; `requests` stop the work
/// (ExitCode::preempted or user_stopped), and the next call with the same arguments continues it, at any
/// number of ranks. Collective. Throws the same on every rank: UsageError if OUT may not be written, OUT.part
/// was begun with other arguments, a table would be too wide or the ending of OUT is of another kind of file,
/// DataError if the data lacks a field that the model reads, or the disk is full.
ExitCode predict(Session& session, models::Model& model, const data::Dataset& dataset,
                 const PredictOptions& options, StopRequests& requests);

}  // namespace lockstep::train
