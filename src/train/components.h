// The components of a run, built from its configuration: model, EMA, and the options of other modules; and
// the memory that they need.
#pragma once

#include <memory>
#include <string>

#include "lockstep/checkpoint/store.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/loader.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/kernels/backend.h"
#include "lockstep/optim/ema.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/train/session.h"
#include "train/config.h"
#include "train/data_sets.h"

namespace lockstep::train {

/// The configured model, its frozen parameters marked. UsageError if this node cannot hold its parameters.
std::unique_ptr<models::Model> build_model(const Config& config);
/// The same for weights of a file, all of which replace the model's: these have no values yet.
std::unique_ptr<models::Model> build_model_of_file(const Config& config);
/// The same with meta tensors: names and shapes only.
std::unique_ptr<models::Model> build_meta_model(const Config& config);

/// The configured task.
std::unique_ptr<Task> make_task(const Config& config);
/// Throws TrainingError if weights are not finite, which a step can cause in spite of a finite loss: they are
/// neither evaluated nor saved.
void check_finite(const ModelState& model, kernels::Backend& backend, std::int64_t step);
/// Throws DataError if the model reads other fields than the data has.
void check_inputs(const Model& model, const data::Dataset& data);
/// Throws DataError if the model or the task needs other fields than the data has.
void check_data(const Model& model, Task& task, const data::Dataset& data);

/// After a pass of `tried` samples: finds batch norm layers that get one value a channel in training passes,
/// counted over ranks that share statistics. Their output is their bias. In a new run a UsageError names the
/// first; an older run gets a warning.
void check_batch_norms(Model& model, std::int64_t tried, const Config& config,
                       const ddp::DataParallel& replicas, bool is_new, const Log& log);

/// After a load: compares the configured model with the original model of the weights, beyond their shapes:
/// by the other program's configuration (checkpoint::check_foreign_config), which it removes from the
/// provenance, and by the options of a stored configuration of the same model, except those with
/// OptionTraits::keeps_weights. UsageError with both sides; for options only a warning with checkpoint.load =
/// partial. Returns the warning, if any.
std::string check_trained_model(checkpoint::LoadReport& report, const Config& config);
/// Loads the weights of train.init, and logs mismatches. `ema` (or null) begins at them, or with ema.init =
/// file at the file's averages. Returns their provenance for saves. Collective. Throws like
/// checkpoint::load_weights and check_trained_model; DataError if the file lacks a configured average, or if
/// its tokenizer is not that of the data (with checkpoint.load = partial a warning).
checkpoint::Provenance load_initial_weights(const Config& config, const data::Tokens& of_data, Model& model,
                                            optim::Ema* ema, Session& session);

/// UsageError on every rank if each rank makes all updates, and these would differ in bits between ranks.
/// Collective.
void check_same_updates(const Config& config, const kernels::Backend& backend, comm::HostGroup& world);

/// Null if neither rates nor widths are configured. partition: of the source of gradients, or null.
std::unique_ptr<optim::Ema> build_ema(const Config& config, const ModelState& model,
                                      kernels::Backend& backend, const Partition* partition = nullptr);

/// train.shards is known. The session's backend must outlive the loader. UsageError for a change of
/// data.augment that the data or the task cannot have. Collective.
data::LoaderOptions loader_options(const Config& config, const DataSets& data, Session& session);
checkpoint::StoreOptions store_options(const Config& config, const DataSets& data,
                                       const kernels::Backend& backend, DType compute, Better keep_best);

/// Minimal memory of every rank in bytes, without activations, which depend on the kernels. In double, as
/// absurd sizes must not overflow.
struct MemoryNeed {
  double parameters = 0;  ///< and buffers
  double gradients = 0, optimizer = 0, ema = 0;
  double inputs = 0;        ///< the batches that a loader holds
  std::string inputs_of{};  ///< of samples that differ in size: which sizes `inputs` assumes

  double sum() const { return parameters + gradients + optimizer + ema + inputs; }
  /// "12.3 MiB: parameters 4.1 MiB, gradients ..."
  std::string to_text() const;
};

/// Computed from shapes alone: the model may consist of meta tensors. Counts the memory of the node: with a
/// GPU only parameters and inputs.
MemoryNeed memory_need(const Config& config, const ModelState& model, const data::Dataset& data, int ranks,
                       Device device);

/// UsageError on every rank, with both figures, if the ranks of a node need more memory than is available.
/// Collective.
void check_memory(const MemoryNeed& need, comm::HostGroup& world);

/// The inputs of a run.
struct Inputs {
  std::unique_ptr<Model> model;
  std::unique_ptr<Task> task;
  std::unique_ptr<DataSets> data;
  MemoryNeed need;
};
/// Opens data and model on each rank, before ranks depend on each other. The model is last, after the check
/// of the nodes' memory. The configuration keeps the listings of folders. Collective.
Inputs open_inputs(Config& config, Session& session);

}  // namespace lockstep::train
