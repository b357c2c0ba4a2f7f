// Dataset: samples that can be read by number, in any order, from any thread. Views, splits and mixtures.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/registry.h"
#include "lockstep/comm/host_group.h"
#include "lockstep/data/augment.h"
#include "lockstep/data/sampler.h"
#include "lockstep/tensor/batch.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::data {

/// One of the arrays that a data set consists of. Row i of each belongs to sample i; of a ragged field each
/// sample has several rows or none: the nodes and the edges of graphs.
struct Field {
  std::string name;              ///< "x"
  DType dtype = DType::float32;  ///< of the values that read() writes
  Shape shape{};                 ///< of one sample: [C, H, W], [T], [] for a label; or of one row
  std::int64_t classes = 0;      ///< of integers: every element is in [0, classes); 0: not known
  bool ragged = false;           ///< samples differ in their number of rows (Dataset::rows)
  /// Of int64: the values are numbers of rows of this ragged field, from 0 on in each sample. In a batch they
  /// count in the rows of all its samples. Empty: they are not.
  std::string index_of{};
  /// The field, int64, one number a sample, that says how many steps (of the first extent of `shape`) of each
  /// sample exist: the others may hold anything, also NaN. Empty: all exist. Not of a ragged field.
  std::string padded_by{};

  bool operator==(const Field&) const = default;
};

/// A float field becomes (value - mean) / deviation. One number for all elements, or for each element of
/// samples [F], each channel of samples [C, ...] of rank 3 or more, each feature of series [T, F].
struct Normalization {
  std::vector<double> mean, deviation;  ///< of each element of the field, in its units
  bool operator==(const Normalization&) const = default;
};

/// How a file stores a field.
struct StoredField {
  DType dtype = DType::float32;  ///< of its elements
  Shape shape{};                 ///< of one sample: [64] of a table, [1, 8, 8] of images
  double largest = 0;            ///< |value| in some samples; 0: not known
  Normalization named{};         ///< the file's attributes mean and std; empty unless it has both
};

/// What a file says.
template <class T>
struct Said {
  T value{};           ///< what it says
  std::string file{};  ///< for messages
};

/// What made tokens of a text.
struct Tokens {
  std::string tokenizer{};      ///< StoredTokenizer::id(); empty: not known
  std::string text{};           ///< its definition, if it has one
  std::int64_t vocabulary = 0;  ///< how many tokens there are; 0: not known
  double bytes_a_token = 0;     ///< of the text, on average; 0: not known
};

/// What the values of a field mean. Weights that learned from them take no others.
struct FieldMeaning {
  StoredField stored{};                      ///< in the first file
  std::optional<Normalization> by{};         ///< none: read as stored
  Said<StoredField> scale{};                 ///< stored, in the first file whose largest value is known
  Said<std::vector<std::string>> classes{};  ///< names of labels 0, 1, 2 ..., where files have them
  Said<std::vector<std::string>> names{};    ///< of the elements of a sample: columns of a table
  Said<std::string> units{};                 ///< of the stored values, where files name them
  Said<std::string> table{};                 ///< what columns became them, where `prepare csv` says it (JSON)
  /// scale_factor and add_offset of netCDF, which are not applied; empty: neither; none: not known
  Said<std::optional<std::string>> packing{};
  Said<std::optional<std::string>> index_of{};  ///< Field::index_of; none: not known
  std::string padded_by{};                      ///< Field::padded_by
  Said<Tokens> tokens{};                        ///< where the values are tokens of a text

  /// Takes over what only `more` knows. DataError with both sides if the same value means two things: another
  /// column, class name, unit or tokenizer, or a number of another scale: bytes and floats from 0 to 1,
  /// unless both files name the same mean and std; of pictures (samples of rank 3 or more) other sizes, too.
  /// What one side does not know is not compared.
  void merge(std::string_view field, const FieldMeaning& more);
};

/// What folders of pictures contain, by their paths: list_folders().
using PictureListings = std::map<std::string, std::string>;

/// For what a data set is opened: what data.format = auto decides by.
struct Request {
  std::vector<std::string> files{};   ///< words of data.train or data.eval
  std::vector<std::string> fields{};  ///< words of data.fields
  bool normalizes = false;            ///< data.normalize names some
  std::int64_t context = 0;           ///< of a model that reads text, in tokens; 0: of no other
  std::int64_t classes = 0;           ///< or tokens that the model knows; 0: not known
  bool documents_apart = false;       ///< data.documents = mask
  bool takes_images = false;          ///< the model says the shape of its input x
  bool takes_series = false;          ///< Model::reads_lengths()
  std::string y_lengths{};            ///< Model::output_lengths()
  bool classifies = false;            ///< y are classes
  bool labels = true;                 ///< y is needed of images
  bool targets = true;                ///< false: fields that the first file lacks are left out
  PictureOptions pictures{};          ///< of pictures
  Augment augment{};                  ///< data.augment: what changes pictures as they are read
  /// Of folders that somebody has listed already; null: none.
  std::shared_ptr<const PictureListings> listings{};
  /// A data set may hold so much in memory of its own; hold_on_node() may follow.
  std::int64_t memory_limit_bytes = std::int64_t{2} << 30;

  /// A data set may be made from its files alone.
  operator const std::vector<std::string>&() const { return files; }
};

/// When training reads samples.
struct Moment {
  std::uint64_t seed = 0;  ///< of the run
  std::int64_t step = 0;   ///< finished updates
  std::int64_t epoch = 0;  ///< of the step's first sample
};

/// Samples of named fields. Reading is const and safe from several threads at once.
class Dataset {
 public:
  /// What is known of a class of data sets before one is opened.
  struct Traits {
    /// T::fits(request): whether data.format = auto takes it for these files; null: never. DataError if they
    /// cannot be read.
    bool (*fits)(const Request&) = nullptr;
    /// Those of T.
    template <class T>
    static Traits of() {
      if constexpr (requires(const Request& request) { T::fits(request); })
        return {.fits = &T::fits};
      else
        return {};
    }
  };

  virtual ~Dataset() = default;

  virtual std::int64_t size() const = 0;  ///< samples
  /// At least one and at most Batch::max_fields, of different names; the same for the object's life, but for
  /// the types that normalize() changes.
  virtual const std::vector<Field>& fields() const = 0;
  /// The samples are consecutive windows of one text: split() cuts them in two, without a permutation.
  virtual bool sequential() const { return false; }
  /// Where the samples come from, for messages.
  virtual std::string name() const = 0;
  /// How many rows these samples have in fields()[field]: of a ragged field the sum of theirs, at most 2^40,
  /// else one a sample. It is called for each batch, so it should not read files. UsageError if a field is
  /// ragged and the data set does not define this.
  virtual std::int64_t rows(std::size_t field, std::span<const std::int64_t> samples) const;

  /// Reads samples, one tensor a field in the order of fields(): [samples, field.shape] of field.dtype. Of a
  /// ragged field: [rows(field, samples), field.shape], sample after sample.
  /// Throws UsageError on a sample outside [0, size()) or other tensors, DataError if the data is bad.
  virtual void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const = 0;
  /// The same for training: a data set that changes its samples at random draws by the moment and the sample,
  /// and evaluations, which call read(), get them unchanged.
  virtual void read_to_train(std::span<const std::int64_t> samples, std::span<const Tensor> into,
                             const Moment& moment) const;

  /// The value of each sample of a field that has one number a sample, in the order of samples: to draw by
  /// it, and without reading other fields if the data set can. UsageError for another field.
  virtual std::vector<double> column(std::string_view field) const;

  /// In which order training takes the samples; none: each epoch is a permutation of all (Shuffle). A pure
  /// function of the seed and the position: weights or balanced classes are written so.
  virtual std::unique_ptr<Order> order(std::uint64_t seed) const;
  /// Where a sample comes from, for messages: "a.h5: row 7".
  virtual std::string location(std::int64_t sample) const;
  /// What users call the sample, such as the name of its file: /row of predictions. Empty: its number;
  /// if that of sample 0 is empty, all are.
  virtual std::string row_name([[maybe_unused]] std::int64_t sample) const { return ""; }
  /// No float field can hold NaN or infinity: nobody needs to look for them.
  virtual bool is_finite() const;
  /// What its files hold besides the fields and cannot be one, for messages: "/label is text [512]".
  virtual std::vector<std::string> skipped() const { return {}; }
  /// What was left out of it, a warning each.
  virtual std::vector<std::string> notes() const { return {}; }
  /// What its folders contained when they were listed, a line a file, to compare at a resume; empty: it has
  /// none.
  virtual std::string listing() const { return ""; }
  /// What a field's values mean, of the first file. DataError if there is no such field.
  virtual FieldMeaning meaning(std::string_view field) const;
  /// Whether normalize() works. Normalized, a view, works for any data set.
  virtual bool can_normalize() const { return false; }
  /// From now on the field is read as (value - mean) / deviation, integers too; none: as it is stored, floats
  /// as float64. Not while others read. DataError if there is no such field, and unless every mean is
  /// within 1e30 and every deviation in [1e-30, 1e30].
  virtual void normalize(std::string_view field, std::optional<Normalization> by);
  /// A data set that numbers classes by their names gives them the numbers that they have in `names` from now
  /// on; others have their numbers from their files. DataError if it has a class that `names` lacks.
  virtual void number_classes(std::string_view field, const Said<std::vector<std::string>>& names);
  /// Reads files that fit into memory, of which each node has one copy: every rank of the job reads a part.
  /// `memory_left_bytes` says how much memory is left, the same on every rank. Not while others read.
  /// Collective; throws what reading throws, the same on every rank. A data set that does nothing reads as it
  /// did.
  virtual void hold_on_node(comm::HostGroup& world, std::int64_t& memory_left_bytes);

 protected:
  /// The UsageErrors of read().
  void check_read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const;
};

/// The fields in these tensors, one each. The fields must outlive the batch.
Batch batch_of(int index, std::span<const Field> fields, std::span<const Tensor> tensors);

/// Memory for read(): a tensor of the CPU for each field.
std::vector<Tensor> tensors_for(const Dataset& dataset, std::span<const std::int64_t> samples);

/// [rows, sample's extents ...]
Shape batch_shape(std::int64_t rows, const Shape& sample);

/// dataset.order(seed), or null. The order throws UsageError, with the data set, position and value, for a
/// sample number outside [0, size()).
std::unique_ptr<Order> checked_order(const Dataset& dataset, std::uint64_t seed);

/// Whether there is a field of that name.
bool has_field(const Dataset& dataset, std::string_view name);
/// The field of that name, and its number. DataError that names the data, the fields it has and what it
/// skipped.
const Field& field_named(const Dataset& dataset, std::string_view name);
std::size_t field_number(const Dataset& dataset, std::string_view name);  ///< in fields()

/// A view of `count` samples of `base` from number `first` on, in the order of the base or of a permutation.
/// If the base has an order of training, the view's is this order without the samples that are not in the
/// view: its epoch is as long as the view, so an epoch of the base that has more of its samples is cut, and
/// one that has fewer begins again. The base must outlive it.
class Subset final : public Dataset {
 public:
  /// Throws UsageError if the samples are not all within the base.
  Subset(const Dataset& base, std::int64_t first, std::int64_t count, std::optional<Permutation> order = {});

  /// The number of sample i in the base.
  std::int64_t base_sample(std::int64_t i) const { return order_ ? (*order_)(first_ + i) : first_ + i; }

  std::int64_t size() const override { return count_; }  ///< samples of the part
  const std::vector<Field>& fields() const override { return base_.fields(); }
  bool sequential() const override { return base_.sequential(); }
  std::string name() const override { return base_.name(); }
  std::int64_t rows(std::size_t field, std::span<const std::int64_t> samples) const override;
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    read_at(samples, into, nullptr);
  }
  void read_to_train(std::span<const std::int64_t> samples, std::span<const Tensor> into,
                     const Moment& moment) const override {
    read_at(samples, into, &moment);
  }
  std::vector<double> column(std::string_view field) const override;
  std::unique_ptr<Order> order(std::uint64_t seed) const override;
  std::string location(std::int64_t sample) const override { return base_.location(base_sample(sample)); }
  std::string row_name(std::int64_t sample) const override { return base_.row_name(base_sample(sample)); }
  bool is_finite() const override { return base_.is_finite(); }
  std::vector<std::string> skipped() const override { return base_.skipped(); }
  FieldMeaning meaning(std::string_view field) const override { return base_.meaning(field); }

 private:
  void read_at(std::span<const std::int64_t> samples, std::span<const Tensor> into,
               const Moment* moment) const;

  const Dataset& base_;
  std::int64_t first_, count_;
  std::optional<Permutation> order_;
};

/// A data set in two parts that share no sample.
struct Split {
  Subset train, eval;  ///< to train on; to evaluate on
};

/// Two parts without a common sample that together are all of them, the evaluation part round(eval_fraction *
/// size), at least 1. Which samples go where depends on the size and the seed only. Of a sequential dataset
/// the evaluation part is the end, whatever the seed. Throws UsageError unless 0 < eval_fraction < 1,
/// DataError if either part would be empty.
Split split(const Dataset& dataset, double eval_fraction, std::uint64_t seed);

/// Several data sets of the same fields as one: sample numbers run through the first, then the second and so
/// on. With weights, training takes from each its share: after any number of positions each source has given
/// its share of them to within one sample if there are up to three sources, to within two if there are more.
/// Each source is walked in its own order, so a small one of great weight comes round more often. An epoch
/// counts as many samples as all sources have. The sources must outlive it.
class Mixture final : public Dataset {
 public:
  /// One of the data sets of a mixture.
  struct Source {
    const Dataset* dataset = nullptr;  ///< must outlive the mixture
    double weight = 1;                 ///< only the ratios count
  };
  /// weighted: training goes by weights; else the samples are one set, as if of one file. Throws DataError,
  /// naming both, if fields or their meanings differ (FieldMeaning::merge), UsageError unless weights are
  /// above 0 and there is a source.
  Mixture(std::vector<Source> sources, bool weighted);

  std::int64_t size() const override { return first_.back(); }  ///< samples of all data sets
  const std::vector<Field>& fields() const override { return fields_; }
  bool sequential() const override;
  std::string name() const override;
  std::int64_t rows(std::size_t field, std::span<const std::int64_t> samples) const override;
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    read_at(samples, into, nullptr);
  }
  void read_to_train(std::span<const std::int64_t> samples, std::span<const Tensor> into,
                     const Moment& moment) const override {
    read_at(samples, into, &moment);
  }
  std::vector<double> column(std::string_view field) const override;
  std::unique_ptr<Order> order(std::uint64_t seed) const override;
  std::string location(std::int64_t sample) const override;
  bool is_finite() const override;
  std::vector<std::string> skipped() const override { return sources_.front().dataset->skipped(); }
  FieldMeaning meaning(std::string_view field) const override;

 private:
  void read_at(std::span<const std::int64_t> samples, std::span<const Tensor> into,
               const Moment* moment) const;
  /// The source that has this sample.
  std::size_t source_of(std::int64_t sample) const;

  std::vector<Source> sources_;
  std::vector<std::int64_t> first_;  // by source: its first sample's number; then the end
  std::vector<Field> fields_;
  bool weighted_;
};

/// The kinds of data sets that data.format can name. D is made from (const Request&) or from its files alone,
/// (const std::vector<std::string>&); with D::Options from (const D::Options&, files or request).
using Registry = lockstep::Registry<Dataset, const Request&>;
/// Adds arrays, images, pictures and text.
void add_built_in(Registry& registry);
/// Of the kinds that fit the request the one that was registered last; own: among those of the program alone.
/// Null: no kind fits. Throws what T::fits() throws.
const Registry::Type* fitting_kind(const Registry& registry, const Request& request, bool own = false);
/// The kind of this name. An empty name means fitting_kind(). UsageError if there is no such kind.
Registry::Choice kind_of(const Registry& registry, const std::string& name, const Request& request);

}  // namespace lockstep::data
