// DataSets: the data of a run: training data, evaluation data, and the normalisation of both.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/host_group.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/loader.h"
#include "lockstep/models/model.h"
#include "lockstep/train/session.h"
#include "train/config.h"
#include "train/learned_data.h"

namespace lockstep::train {

/// A file or folder of data.train.
struct TrainingFile {
  std::string path;
  std::optional<double> weight;  ///< in the mixture
};
/// "a.h5*0.7" is the file a.h5 with the weight 0.7, unless there is a file of that whole name; "a-*.h5" are
/// all such files. UsageError if the weight is not above 0.
std::vector<TrainingFile> training_files(const DataConfig& config);

/// data.fields of a checkpoint's configuration, overridden. UsageError if the run's data are not arrays.
void set_fields(Config& config, const models::Model& model, std::vector<std::string> fields);

/// Lists the folders of pictures of data.train and data.eval, or `only` this one, once, on rank 0, for all
/// ranks: into config.data.listings. Collective; the same DataError on every rank.
void list_folders(Config& config, comm::HostGroup& world, const std::string& only = {});

class DataSets {
 public:
  /// Opens the files of config.data as data for this model. Fields of data.normalize are floats from then on,
  /// and are normalised after measure() or the load of a checkpoint. If the task needs x in [-1, 1], it is
  /// mapped to it by data.range; the default is 0 to 255 for uint8 and -1 to 1 for floats, but a program's
  /// own data set needs data.range. Throws like the data sets; UsageError if data.range is missing or has no
  /// effect; DataError if a label or token is not below the model's classes.
  DataSets(const Config& config, const models::Model& model);
  /// One file as evaluation data, normalised like `from`, see use(). Images of a checkpoint without
  /// normalisation are normalised like the files of data.train; if those cannot be opened, by their own mean
  /// and deviation, with a warning. A table (.csv ...) becomes data as those that the weights learned from;
  /// each rank reads all of it, so its values fit into the memory of each. targets: false: leaves out fields
  /// that the file lacks, and the target of a table. unknown_as_missing: categories that training did not
  /// see.
  DataSets(const Config& config, const models::Model& model, const std::string& eval_path,
           const LearnedFrom& from, bool targets = true, bool own_statistics = false,
           bool unknown_as_missing = false);
  ~DataSets();

  const data::Dataset& train() const { return *train_; }
  /// Null if there is none.
  const data::Dataset* eval() const { return eval_part_ ? &*eval_part_ : eval_; }
  /// The kind of the data; never "auto".
  const std::string& format() const { return format_; }
  /// The stored range of x, if the task needs it in [-1, 1].
  const std::optional<StoredRange>& range() const { return range_; }
  /// The tokenizer of text; empty for other data, and if the data file names none.
  data::Tokens tokens() const;
  /// By which training draws its samples, data.balance or data.weights; empty: by neither.
  const std::vector<double>& draw_weights() const { return draw_weights_; }
  /// What the folders of the data contain, a line a picture; empty: none are folders.
  std::string listing() const;
  /// What was left out of a table, to log (log_warnings).
  const std::vector<std::string>& notes() const { return notes_; }
  /// Warnings to log once (log_warnings).
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }

  /// Reads data that fits data.memory into the memory of each node (data::Dataset::hold_on_node); until then
  /// all of it is read from its files. No loader may be reading. Collective; throws the same on every rank.
  void hold_on_node(comm::HostGroup& world, const Config& config);
  /// Finds the mean and deviation of each field in data.normalize: from the attributes of its array in the
  /// first file, or of the training samples (without any: of the evaluation samples). No loader may be
  /// reading. Collective; throws the same on every rank.
  void measure(comm::HostGroup& world);
  /// For weights that learned from such data: normalises by its mean and deviation from now on, with a
  /// warning if files have others; with own_statistics by those of the files (for data.normalize: after
  /// measure()). DataError if the same values have two meanings, or if mean and deviation of a field of
  /// data.normalize are unknown.
  void use(const LearnedFrom& from, bool own_statistics = false);

 private:
  /// A part of a mixture.
  struct Source {
    std::unique_ptr<data::Dataset> whole;
    std::optional<data::Split> split;
    double weight = 1;

    const data::Dataset& train() const {
      return split ? static_cast<const data::Dataset&>(split->train) : *whole;
    }
  };
  struct NormalizedField {
    std::string name;
    data::Normalization by;
    bool by_key = true;  // a field of data.normalize; false: by attributes of the image files
    bool known = false;  // from the files or their values, or from a checkpoint
  };

  std::unique_ptr<data::Dataset> open(const Config& config, const data::Request& request);
  void open_train(const Config& config, const models::Model& model);
  std::vector<data::Dataset*> all() const;
  void weigh(const DataConfig& config);
  void map_to_unit_range(const Config& config);
  void add_normalized_fields(const std::vector<std::string>& names, const models::Model& model);
  void check_meanings();
  void normalize(const NormalizedField& field);

  std::vector<Source> sources_;
  std::unique_ptr<data::Dataset> eval_file_;
  std::optional<data::Mixture> train_mixture_, eval_mixture_;
  const data::Dataset* train_ = nullptr;
  const data::Dataset* eval_ = nullptr;
  std::optional<data::Subset> eval_part_;  // train.eval_samples
  std::vector<NormalizedField> normalized_;
  std::vector<double> draw_weights_;
  std::optional<StoredRange> range_;  // of the first file
  std::string format_;
  std::vector<std::string> notes_, warnings_;
};

/// Logs notes and new warnings, on rank 0.
void log_warnings(DataSets& data, Session& session);
/// Reads the held-out data, or a part if it is large, before a run depends on it. Logs a warning if a field
/// holds NaN or infinity. Collective; throws the errors of reading.
void warn_of_held_out(const DataSets& data, Session& session);
/// `error` ends the run at this step (from 0 on). Throws another TrainingError, on every rank, that names a
/// number in the data which may be the reason. Collective.
void blame_data(const TrainingError& error, data::Loader& loader, const DataSets& data, std::int64_t step,
                Session& session);

}  // namespace lockstep::train
