#include "lockstep/data/dataset.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <compare>
#include <functional>
#include <iterator>
#include <limits>
#include <mutex>
#include <numeric>
#include <queue>
#include <utility>

#include "base/text.h"
#include "data/data_file.h"
#include "data/ragged.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep::data {

std::int64_t Dataset::rows(std::size_t field, std::span<const std::int64_t> samples) const {
  if (!fields()[field].ragged) return std::ssize(samples);
  throw UsageError("{}: field {} is ragged, so the data set must define rows()", name(),
                   fields()[field].name);
}

std::vector<Tensor> tensors_for(const Dataset& dataset, std::span<const std::int64_t> samples) {
  std::vector<Tensor> tensors;
  for (const Field& field : dataset.fields())
    tensors.push_back(
        Tensor::empty(batch_shape(dataset.rows(tensors.size(), samples), field.shape), field.dtype));
  return tensors;
}

Batch batch_of(int index, std::span<const Field> fields, std::span<const Tensor> tensors) {
  Batch batch(index, {});
  for (std::size_t i = 0; i < fields.size(); ++i) batch.add(fields[i].name, tensors[i]);
  return batch;
}

Shape batch_shape(std::int64_t rows, const Shape& sample) {
  std::array<std::int64_t, Shape::max_rank + 1> extents{rows};
  std::copy(sample.begin(), sample.end(), extents.begin() + 1);
  return Shape(std::span<const std::int64_t>(extents.data(), static_cast<std::size_t>(sample.rank()) + 1));
}

namespace {

/// Whether numbers of both cannot be of one scale: bytes from 0 to 255, and floats from 0 to 1 that such
/// bytes became; or pictures of types whose values are of other sizes. Tables, and pictures of one type, may
/// have any numbers.
bool differ_in_scale(const StoredField& one, const StoredField& other) {
  const int rank = std::max(one.shape.rank(), other.shape.rank());
  if (one.largest <= 0 || other.largest <= 0 || rank == 0 ||
      (!one.named.mean.empty() && one.named == other.named))
    return false;
  const bool pictures = rank >= 3;
  const auto are_byte_and_unit = [&](const StoredField& a, const StoredField& b) {
    return a.largest >= 128 && a.largest <= 255 && (pictures || a.dtype == DType::uint8) &&
           is_floating(b.dtype) && b.largest > 0.25 && b.largest <= 1.001;
  };
  if (are_byte_and_unit(one, other) || are_byte_and_unit(other, one)) return true;
  constexpr double most = 16;
  const double ratio = one.largest / other.largest;
  return pictures && one.dtype != other.dtype && (ratio > most || ratio < 1 / most);
}

/// "\"bytes\" (256 tokens)"
std::string described(const Tokens& tokens) {
  return fmt::format("{}{}", quote(tokens.tokenizer),
                     tokens.vocabulary > 0 ? fmt::format(" ({} tokens)", tokens.vocabulary) : "");
}

}  // namespace

void FieldMeaning::merge(std::string_view field, const FieldMeaning& more) {
  if (!units.value.empty() && !more.units.value.empty() && units.value != more.units.value)
    throw DataError(
        "{}: {} has the units {}, but in {} it has {}: convert its values, and its attribute units",
        more.units.file, field, quote(more.units.value), units.file, quote(units.value));
  if (index_of.value && more.index_of.value && *index_of.value != *more.index_of.value)
    throw DataError(
        "{}: {} has the attribute index_of = {}, but in {} it has {}: its numbers are rows of something else",
        more.index_of.file, field, quote(*more.index_of.value), index_of.file, quote(*index_of.value));
  if (packing.value && more.packing.value && *packing.value != *more.packing.value)
    throw DataError("{}: {} has the packing {}, but in {} it has {}: unpack both (netCDF)", more.packing.file,
                    field, quote(*more.packing.value), packing.file, quote(*packing.value));
  const auto [column, there_is] = std::ranges::mismatch(names.value, more.names.value);
  if (column != names.value.end() && there_is != more.names.value.end())
    throw DataError(
        "{}: element {} of {} is {}, but in {} it is {}: the same columns in the same order are needed "
        "(attribute names)",
        more.names.file, column - names.value.begin() + 1, field, quote(*there_is), names.file,
        quote(*column));
  if (!table.value.empty() && !more.table.value.empty() && table.value != more.table.value)
    throw DataError(
        "{}: {} is of a table whose columns, categories or fills differ from those of {}: prepare one of "
        "them with the other (prepare csv --statistics)",
        more.table.file, field, table.file);
  const auto [name, other] = std::ranges::mismatch(classes.value, more.classes.value);
  if (name != classes.value.end() && other != more.classes.value.end())
    throw DataError(
        "{}: class {} of {} is {}, but in {} it is {}: the same label would mean two things; prepare one of "
        "them with the names of the other (prepare csv --statistics)",
        more.classes.file, name - classes.value.begin(), field, quote(*other), classes.file, quote(*name));
  const Tokens &mine = tokens.value, &theirs = more.tokens.value;
  const bool both_files = mine.vocabulary > 0 && theirs.vocabulary > 0;
  if ((both_files && mine.vocabulary != theirs.vocabulary) ||
      ((both_files || (!mine.tokenizer.empty() && !theirs.tokenizer.empty())) &&
       mine.tokenizer != theirs.tokenizer))
    throw DataError("{}: its tokens are of the tokenizer {}, but those of {} are of {}", more.tokens.file,
                    described(theirs), tokens.file, described(mine));
  const StoredField &known = scale.value, &there = more.scale.value;
  if (differ_in_scale(known, there))
    throw DataError(
        "{}: {} is {} up to {:.3g}, but in {} it is {} up to {:.3g} (in some samples): store both in the "
        "same scale; if they are, name the same mean and std in both",
        more.scale.file, field, to_string(there.dtype), there.largest, scale.file, to_string(known.dtype),
        known.largest);
  if (classes.value.size() < more.classes.value.size()) classes = more.classes;
  if (names.value.empty()) names = more.names;
  if (units.value.empty()) units = more.units;
  if (table.value.empty()) table = more.table;
  if (!packing.value) packing = more.packing;
  if (!index_of.value) index_of = more.index_of;
  if (mine.tokenizer.empty()) tokens = more.tokens;
  if (known.largest <= 0) scale = more.scale;
}

FieldMeaning Mixture::meaning(std::string_view field) const {
  FieldMeaning meaning = sources_.front().dataset->meaning(field);
  for (const Source& source : sources_) meaning.merge(field, source.dataset->meaning(field));
  return meaning;
}

FieldMeaning Dataset::meaning(std::string_view field) const {
  const Field& found = field_named(*this, field);
  return {.stored = {.dtype = found.dtype, .shape = found.shape},
          .index_of = {found.index_of, this->name()},
          .padded_by = found.padded_by};
}

void Dataset::read_to_train(std::span<const std::int64_t> samples, std::span<const Tensor> into,
                            const Moment&) const {
  read(samples, into);
}

void Dataset::normalize(std::string_view field, std::optional<Normalization>) {
  throw UsageError("{}: its field {} is read as it is; data::Normalized is a view that normalises", name(),
                   field);
}

std::vector<double> Dataset::column(std::string_view name) const {
  constexpr std::int64_t rows_at_once = 64;
  check_column(field_named(*this, name), this->name());
  const std::size_t index = field_number(*this, name);
  std::vector<double> values;
  std::vector<std::int64_t> samples(rows_at_once);
  for (std::int64_t first = 0; first < size(); first += rows_at_once) {
    const std::int64_t rows = std::min(rows_at_once, size() - first);
    samples.resize(static_cast<std::size_t>(rows));
    std::iota(samples.begin(), samples.end(), first);
    const std::vector<Tensor> part = tensors_for(*this, samples);
    read(samples, part);
    append_values(part[index], values);
  }
  return values;
}

std::vector<double> Subset::column(std::string_view field) const {
  const std::vector<double> all = base_.column(field);
  std::vector<double> values;
  for (std::int64_t i = 0; i < count_; ++i) values.push_back(all[static_cast<std::size_t>(base_sample(i))]);
  return values;
}

std::vector<double> Mixture::column(std::string_view field) const {
  std::vector<double> values;
  for (const Source& source : sources_)
    std::ranges::copy(source.dataset->column(field), std::back_inserter(values));
  return values;
}

void Dataset::number_classes(std::string_view, const Said<std::vector<std::string>>&) {}
void Dataset::hold_on_node(comm::HostGroup&, std::int64_t&) {}

std::unique_ptr<Order> Dataset::order(std::uint64_t) const { return nullptr; }

std::string Dataset::location(std::int64_t sample) const {
  return fmt::format("{}: sample {}", name(), sample);
}

bool Dataset::is_finite() const {
  return std::ranges::none_of(fields(), [](const Field& field) { return is_floating(field.dtype); });
}

void Dataset::check_read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const {
  for (const std::int64_t sample : samples) {
    if (sample < 0 || sample >= size()) throw UsageError("{}: sample {} of {} asked", name(), sample, size());
  }
  if (into.size() != fields().size()) {
    throw UsageError("{}: samples of {} fields are read into {} tensors", name(), fields().size(),
                     into.size());
  }
  for (std::size_t i = 0; i < into.size(); ++i) {
    const Field& field = fields()[i];
    const Shape wanted = batch_shape(rows(i, samples), field.shape);
    if (into[i].shape() == wanted && into[i].dtype() == field.dtype && into[i].channel_block() == 1) continue;
    throw UsageError("{}: {} samples are read into {} {} {}, not {} {}", name(), samples.size(), field.name,
                     to_string(field.dtype), to_string(wanted), to_string(into[i].dtype()),
                     to_string(into[i].shape()));
  }
}

namespace {

/// Another order, whose sample numbers it checks.
class CheckedOrder final : public Order {
 public:
  CheckedOrder(std::unique_ptr<Order> order, std::string name, std::int64_t size)
      : order_(std::move(order)), name_(std::move(name)), size_(size) {}

  void samples(std::int64_t first, std::span<std::int64_t> out) const override {
    order_->samples(first, out);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (out[i] >= 0 && out[i] < size_) continue;
      throw UsageError("{}: its order has sample {} at position {}, but samples are numbered 0 to {}", name_,
                       out[i], first + static_cast<std::int64_t>(i), size_ - 1);
    }
  }

 private:
  std::unique_ptr<Order> order_;
  std::string name_;
  std::int64_t size_;
};

}  // namespace

void check_column(const Field& field, const std::string& name) {
  if (field.shape.numel() == 1 && !field.ragged) return;
  throw UsageError("{}: samples of {} are {}{}: one number a sample is needed", name, quote(field.name),
                   field.ragged ? "rows of " : "", to_string(field.shape));
}

void append_values(const Tensor& column, std::vector<double>& values) {
  const auto append = [&](const auto* elements) {
    values.insert(values.end(), elements, elements + column.numel());
  };
  if (column.dtype() == DType::int64)
    append(column.data<std::int64_t>());
  else if (column.dtype() == DType::float64)
    append(column.data<double>());
  else
    append(column.data<float>());
}

std::unique_ptr<Order> checked_order(const Dataset& dataset, std::uint64_t seed) {
  std::unique_ptr<Order> order = dataset.order(seed);
  if (!order) return nullptr;
  return std::make_unique<CheckedOrder>(std::move(order), dataset.name(), dataset.size());
}

bool has_field(const Dataset& dataset, std::string_view name) {
  return std::ranges::find(dataset.fields(), name, &Field::name) != dataset.fields().end();
}

const Field& field_named(const Dataset& dataset, std::string_view name) {
  const std::vector<Field>& fields = dataset.fields();
  const auto found = std::ranges::find(fields, name, &Field::name);
  if (found != fields.end()) return *found;
  std::vector<std::string> names;
  for (const Field& field : fields) names.push_back(field.name);
  const std::vector<std::string> skipped = dataset.skipped();
  throw DataError("{}: has no field '{}', which is needed; it has {}{}{}", dataset.name(), name,
                  fmt::join(names, ", "), skipped.empty() ? "" : "; skipped: ", fmt::join(skipped, ", "));
}

std::size_t field_number(const Dataset& dataset, std::string_view name) {
  return static_cast<std::size_t>(&field_named(dataset, name) - dataset.fields().data());
}

Subset::Subset(const Dataset& base, std::int64_t first, std::int64_t count, std::optional<Permutation> order)
    : base_(base), first_(first), count_(count), order_(std::move(order)) {
  if (first < 0 || count < 0 || first > base.size() - count) {
    throw UsageError("{}: samples {} to {} of {} asked", base.name(), first, first + count, base.size());
  }
  if (order_ && order_->size() != base.size()) {
    throw UsageError("{}: an order of {} samples was given for {}", base.name(), order_->size(), base.size());
  }
}

namespace {

/// Reads samples number_of(i) of a base, a few at a time, so that threads share no memory. moment: of
/// training, or null.
template <class NumberOf>
void read_translated(const Dataset& base, std::span<const std::int64_t> samples, std::span<const Tensor> into,
                     const Moment* moment, const NumberOf& number_of) {
  std::array<std::int64_t, 64> translated;
  NextRows next(base, into);
  for (std::size_t done = 0; done < samples.size();) {
    const std::size_t count = std::min(translated.size(), samples.size() - done);
    for (std::size_t i = 0; i < count; ++i) translated[i] = number_of(samples[done + i]);
    const std::span<const std::int64_t> numbers(translated.data(), count);
    const std::span<const Tensor> parts = next(numbers);
    moment ? base.read_to_train(numbers, parts, *moment) : base.read(numbers, parts);
    done += count;
  }
}

}  // namespace

std::int64_t Subset::rows(std::size_t field, std::span<const std::int64_t> samples) const {
  return rows_by_sample(fields()[field], samples, [&](std::int64_t sample) {
    const std::int64_t number = base_sample(sample);
    return base_.rows(field, {&number, 1});
  });
}

void Subset::read_at(std::span<const std::int64_t> samples, std::span<const Tensor> into,
                     const Moment* moment) const {
  check_read(samples, into);
  read_translated(base_, samples, into, moment, [this](std::int64_t i) { return base_sample(i); });
}

namespace {

/// The order of a base without the samples that a subset lacks. Epochs are made whole, and the two newest are
/// kept: a batch may be in both.
class RestrictedOrder final : public Order {
 public:
  /// sample_of_base: by sample of the base its number in the subset, or -1.
  RestrictedOrder(std::unique_ptr<Order> base, std::vector<std::int64_t> sample_of_base, std::int64_t count)
      : base_(std::move(base)), sample_of_base_(std::move(sample_of_base)), count_(count) {}

  void samples(std::int64_t first, std::span<std::int64_t> out) const override {
    for (std::size_t done = 0; done < out.size();) {
      const std::int64_t position = first + static_cast<std::int64_t>(done);
      const std::shared_ptr<const Epoch> epoch = epoch_at(position / count_);
      const auto size = static_cast<std::int64_t>(epoch->samples.size());
      for (std::int64_t i = position % count_; i < count_ && done < out.size(); ++i)
        out[done++] = epoch->samples[static_cast<std::size_t>(i % size)];
    }
  }

 private:
  struct Epoch {
    std::int64_t number = -1;
    std::vector<std::int64_t> samples;
  };

  std::shared_ptr<const Epoch> epoch_at(std::int64_t number) const {
    const std::lock_guard lock(mutex_);
    for (const auto& epoch : newest_)
      if (epoch && epoch->number == number) return epoch;
    auto epoch = std::make_shared<Epoch>();
    epoch->number = number;
    const auto length = static_cast<std::int64_t>(sample_of_base_.size());
    std::array<std::int64_t, 1024> drawn;
    for (std::int64_t at = 0; at < length; at += std::ssize(drawn)) {
      const std::span<std::int64_t> some(
          drawn.data(), static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(drawn), length - at)));
      base_->samples(number * length + at, some);
      for (const std::int64_t sample : some)
        if (const std::int64_t mine = sample_of_base_[static_cast<std::size_t>(sample)]; mine >= 0)
          epoch->samples.push_back(mine);
    }
    if (epoch->samples.empty())
      throw DataError("epoch {} of the data's own order has no sample of the training part", number);
    std::swap(newest_[0], newest_[1]);
    return newest_[0] = std::move(epoch);
  }

  std::unique_ptr<Order> base_;
  std::vector<std::int64_t> sample_of_base_;
  std::int64_t count_;
  mutable std::mutex mutex_;
  mutable std::array<std::shared_ptr<const Epoch>, 2> newest_;
};

}  // namespace

std::unique_ptr<Order> Subset::order(std::uint64_t seed) const {
  std::unique_ptr<Order> of_base = checked_order(base_, seed);
  if (!of_base) return nullptr;
  std::vector<std::int64_t> sample_of_base(static_cast<std::size_t>(base_.size()), -1);
  for (std::int64_t i = 0; i < count_; ++i) sample_of_base[static_cast<std::size_t>(base_sample(i))] = i;
  return std::make_unique<RestrictedOrder>(std::move(of_base), std::move(sample_of_base), count_);
}

Split split(const Dataset& dataset, double eval_fraction, std::uint64_t seed) {
  if (!(eval_fraction > 0 && eval_fraction < 1)) {
    throw UsageError("eval_fraction = {}: it must lie between 0 and 1", eval_fraction);
  }
  const std::int64_t size = dataset.size();
  const std::int64_t held_out =
      std::max<std::int64_t>(1, std::llround(eval_fraction * static_cast<double>(size)));
  if (held_out >= size) {
    throw DataError("{}: {} samples are too few to hold out eval_fraction = {}: none is left to train on",
                    dataset.name(), size, eval_fraction);
  }
  std::optional<Permutation> order;
  // The epochs of training use the seed itself; a split must not follow any of them.
  if (!dataset.sequential()) order.emplace(size, mix_bits(seed ^ purpose_of("split")), 0);
  return {Subset(dataset, 0, size - held_out, order), Subset(dataset, size - held_out, held_out, order)};
}

namespace {

/// Takes from each source its share of positions. The sources are the leaves of a Huffman tree of their
/// weights. A node that has had n positions has given round(n * share) of them to its lighter child and the
/// others to the heavier one, so that the walk from the root to a leaf yields the source and its own
/// position. The count of a node is off by at most 1/2, plus its share of its parent's error. Huffman's order
/// makes the weights of a leaf's ancestors grow at least like Fibonacci numbers, so a leaf is off by less
/// than (1 + 1/1 + 1/2 + 1/3 + 1/5 + 1/8 + ...) / 2 < 1.7; with up to three leaves by less than 1.
class MixedOrder final : public Order {
 public:
  struct Part {
    std::unique_ptr<Order> order;
    std::int64_t first = 0;  ///< number of its first sample
    double weight = 0;
  };
  explicit MixedOrder(std::vector<Part> parts) : parts_(std::move(parts)) {
    double heaviest = 0;
    for (const Part& part : parts_) heaviest = std::max(heaviest, part.weight);
    struct Weighed {
      double weight;
      std::size_t node;
      auto operator<=>(const Weighed&) const = default;
    };
    std::priority_queue<Weighed, std::vector<Weighed>, std::greater<>> left;  // the lightest first
    for (std::size_t i = 0; i < parts_.size(); ++i)
      left.push({std::max(parts_[i].weight / heaviest, std::numeric_limits<double>::min()), i});
    const auto take = [&] {
      const Weighed lightest = left.top();
      left.pop();
      return lightest;
    };
    while (left.size() > 1) {
      const Weighed light = take(), heavy = take();
      const double both = light.weight + heavy.weight;
      left.push({both, parts_.size() + splits_.size()});
      splits_.push_back({.light = light.node,
                         .heavy = heavy.node,
                         .share = static_cast<std::uint64_t>(std::ldexp(light.weight / both, 64))});
    }
  }

  void samples(std::int64_t first, std::span<std::int64_t> out) const override {
    for (std::size_t i = 0; i < out.size(); ++i) {
      auto position = static_cast<std::uint64_t>(first) + i;
      std::size_t node = parts_.size() + splits_.size() - 1;  // the root
      while (node >= parts_.size()) {
        const Split& split = splits_[node - parts_.size()];
        const std::uint64_t before = split.to_light(position);
        const bool is_light = split.to_light(position + 1) > before;
        node = is_light ? split.light : split.heavy;
        position = is_light ? before : position - before;
      }
      const Part& part = parts_[node];
      part.order->samples(static_cast<std::int64_t>(position), out.subspan(i, 1));
      out[i] += part.first;
    }
  }

 private:
  /// Nodes are numbered: first the parts, then the splits; the last one is the root.
  struct Split {
    std::size_t light, heavy;
    std::uint64_t share;  ///< of the lighter child, at most one half, in units of 2^-64

    /// How many of the first `positions` the lighter child has.
    std::uint64_t to_light(std::uint64_t positions) const {
      __extension__ using Wide = unsigned __int128;
      return static_cast<std::uint64_t>((Wide{share} * positions + (Wide{1} << 63)) >> 64);
    }
  };
  std::vector<Part> parts_;
  std::vector<Split> splits_;
};

std::string described(const Field& field) {
  return fmt::format("{} {} {}{}{}", field.name, to_string(field.dtype), field.ragged ? "rows of " : "",
                     to_string(field.shape), field.index_of.empty() ? "" : ", index_of " + field.index_of);
}

}  // namespace

Mixture::Mixture(std::vector<Source> sources, bool weighted)
    : sources_(std::move(sources)), weighted_(weighted) {
  if (sources_.empty()) throw UsageError("a mixture of no data sets was asked");
  fields_ = sources_.front().dataset->fields();
  first_.push_back(0);
  for (const Source& source : sources_) {
    const Dataset& dataset = *source.dataset;
    if (!(source.weight > 0 && std::isfinite(source.weight)))
      throw UsageError("{}: its weight in the mixture is {}: it must be above 0", dataset.name(),
                       source.weight);
    if (dataset.fields().size() != fields_.size()) {
      throw DataError("{}: has {} fields, but {} has {}", dataset.name(), dataset.fields().size(),
                      sources_.front().dataset->name(), fields_.size());
    }
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      Field& all = fields_[i];
      const Field& one = dataset.fields()[i];
      if (one.name != all.name || one.dtype != all.dtype || !(one.shape == all.shape) ||
          one.ragged != all.ragged || one.index_of != all.index_of) {
        throw DataError("{}: samples have {}, but those of {} have {}", dataset.name(), described(one),
                        sources_.front().dataset->name(), described(all));
      }
      all.classes = one.classes == 0 || all.classes == 0 ? 0 : std::max(all.classes, one.classes);
    }
    first_.push_back(first_.back() + dataset.size());
  }
  for (const Field& field : fields_) meaning(field.name);
}

bool Mixture::sequential() const {
  return std::ranges::all_of(sources_, [](const Source& source) { return source.dataset->sequential(); });
}

std::string Mixture::name() const {
  std::vector<std::string> names;
  for (const Source& source : sources_) names.push_back(source.dataset->name());
  return fmt::format("{}", fmt::join(names, " + "));
}

std::size_t Mixture::source_of(std::int64_t sample) const {
  return static_cast<std::size_t>(std::ranges::upper_bound(first_, sample) - first_.begin()) - 1;
}

std::string Mixture::location(std::int64_t sample) const {
  const std::size_t source = source_of(sample);
  return sources_[source].dataset->location(sample - first_[source]);
}

bool Mixture::is_finite() const {
  return std::ranges::all_of(sources_, [](const Source& source) { return source.dataset->is_finite(); });
}

std::int64_t Mixture::rows(std::size_t field, std::span<const std::int64_t> samples) const {
  return rows_by_sample(fields_[field], samples, [&](std::int64_t sample) {
    const std::size_t source = source_of(sample);
    const std::int64_t number = sample - first_[source];
    return sources_[source].dataset->rows(field, {&number, 1});
  });
}

void Mixture::read_at(std::span<const std::int64_t> samples, std::span<const Tensor> into,
                      const Moment* moment) const {
  check_read(samples, into);
  NextRows next(*this, into);
  for (std::size_t begin = 0, end = 0; begin < samples.size();
       begin = end) {  // a run of one source at a time
    const std::size_t source = source_of(samples[begin]);
    while (end < samples.size() && source_of(samples[end]) == source) ++end;
    const std::span<const std::int64_t> run = samples.subspan(begin, end - begin);
    read_translated(*sources_[source].dataset, run, next(run), moment,
                    [&](std::int64_t sample) { return sample - first_[source]; });
  }
}

std::unique_ptr<Order> Mixture::order(std::uint64_t seed) const {
  if (!weighted_) return nullptr;
  std::vector<MixedOrder::Part> parts;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const Dataset& dataset = *sources_[i].dataset;
    const std::uint64_t own_seed = mix_bits(seed ^ purpose_of("mixture") ^ i);  // no two walk alike
    std::unique_ptr<Order> order = checked_order(dataset, own_seed);
    if (!order) order = std::make_unique<Shuffle>(dataset.size(), own_seed);
    parts.push_back({std::move(order), first_[i], sources_[i].weight});
  }
  return std::make_unique<MixedOrder>(std::move(parts));
}

}  // namespace lockstep::data
