// The components of a run, made from its configuration: model, EMA, and the options of the modules that carry
// out the rest; and the memory that they need.
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
/// The same with meta tensors: names and shapes only.
std::unique_ptr<models::Model> build_meta_model(const Config& config);

/// The configured task.
std::unique_ptr<Task> make_task(const Config& config);
/// A step can make weights that are not finite from a finite loss: TrainingError, as they are neither
/// evaluated nor saved.
void check_finite(const ModelState& model, kernels::Backend& backend, std::int64_t step);
/// Throws DataError if the model reads other fields than the data has.
void check_inputs(const Model& model, const data::Dataset& data);
/// Throws DataError if the model or the task needs other fields than the data has.
void check_data(const Model& model, Task& task, const data::Dataset& data);

/// After a pass of `tried` samples: batch norm layers to which training passes give one value a channel,
/// counted over the ranks where these share statistics. Their output is their bias. UsageError that names the
/// first of a new run, which a run of before gets as a warning.
void check_batch_norms(Model& model, std::int64_t tried, const Config& config,
                       const ddp::DataParallel& replicas, bool is_new, const Log& log);

/// After a load: compares the configured model with what the file says of the model that the weights were
/// trained in, where shapes do not show it: the other program's configuration
/// (checkpoint::check_foreign_config), which it takes out of the provenance, and the options of a stored
/// configuration of the same model, but for those with OptionTraits::keeps_weights. UsageError with both
/// sides; of options only a warning in the report with checkpoint.load = partial.
void check_trained_model(checkpoint::LoadReport& report, const Config& config);
/// Loads the weights of train.init, and logs what does not fit. `ema` (or null) begins at them, or with
/// ema.init = file at the file's averages. Returns the provenance that saves keep of them. Collective. Throws
/// as checkpoint::load_weights and check_trained_model; DataError if an average is asked for that the file
/// lacks.
checkpoint::Provenance load_initial_weights(const Config& config, Model& model, optim::Ema* ema,
                                            Session& session);

/// UsageError on every rank if each rank makes all updates, and these would not have the same bits
/// everywhere. Collective.
void check_same_updates(const Config& config, const kernels::Backend& backend, comm::HostGroup& world);

/// Null if neither rates nor widths are configured. partition: that of the source of gradients, or null.
std::unique_ptr<optim::Ema> build_ema(const Config& config, const ModelState& model,
                                      kernels::Backend& backend, const Partition* partition = nullptr);

data::Augment augment_of(const Config& config, const data::Dataset& dataset);
/// train.shards is known. The backend must outlive the loader.
data::LoaderOptions loader_options(const Config& config, const data::Dataset& dataset,
                                   kernels::Backend& backend);
checkpoint::StoreOptions store_options(const Config& config, const DataSets& data,
                                       const kernels::Backend& backend, DType compute, Better keep_best);

/// Bytes that every rank takes at least: without activations, which depend on the kernels. In double, since
/// absurd sizes must not overflow.
struct MemoryNeed {
  double parameters = 0;  ///< and buffers
  double gradients = 0, optimizer = 0, ema = 0;
  double inputs = 0;  ///< of the rank's shards

  double sum() const { return parameters + gradients + optimizer + ema + inputs; }
  /// "12.3 MiB: parameters 4.1 MiB, gradients ..."
  std::string to_text() const;
};

/// Computed from shapes alone: the model may be one of meta tensors. Counts the memory of the node: a GPU
/// holds all but parameters and inputs itself.
MemoryNeed memory_need(const Config& config, const ModelState& model, const data::Dataset& data, int ranks,
                       Device device);

/// UsageError on every rank if the ranks of a node need more than the node has left, with both figures.
/// Collective.
void check_memory(const MemoryNeed& need, comm::HostGroup& world);

/// What a run starts with.
struct Inputs {
  std::unique_ptr<Model> model;
  std::unique_ptr<Task> task;
  std::unique_ptr<DataSets> data;
  MemoryNeed need;
};
/// Opens data and model on each rank, before ranks depend on one another. The model comes last, after the
/// check that the nodes can hold the run. Collective.
Inputs open_inputs(const Config& config, Session& session);

}  // namespace lockstep::train
