#include "lockstep/data/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <utility>

#include "base/files.h"
#include "base/text.h"
#include "data/array_writer.h"
#include "data/data_file.h"
#include "data/picture_reader.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t colours = 3, levels = 256, max_classes = 1 << 30;

/// [pixels, 3] becomes [3, pixels].
template <class T, class Value>
void by_colour(const Picture& picture, T* out, const Value& value) {
  const std::int64_t pixels = picture.height * picture.width;
  for (std::int64_t c = 0; c < colours; ++c)
    for (std::int64_t i = 0; i < pixels; ++i) *out++ = value(c, picture.pixels.data()[colours * i + c]);
}

std::vector<PictureList> lists_of(const std::set<std::string>& folders, const PictureOptions& options,
                                  const ListRules& rules) {
  std::vector<PictureList> lists;
  for (const std::string& folder : folders)
    lists.push_back(PictureList::of_folder(folder, options, rules.labels_are_theirs));
  if (rules.labels_are_theirs && !lists.empty())
    for (const auto& one : lists.front().elsewhere())
      if (std::ranges::all_of(lists,
                              [&](const PictureList& list) { return list.elsewhere().contains(one.first); }))
        throw DataError("{}: {} no picture {}", one.second,
                        lists.size() == 1 ? lists.front().folder() + " has" : "the folders have",
                        quote(one.first));
  if (options.skip_bad && rules.decodes)
    for (PictureList& list : lists) list.leave_out(find_bad(*open_folder(list), options));
  return lists;
}

std::unique_ptr<PictureStore> open_store(const std::string& path, const PictureOptions& options,
                                         const PictureListings* listings) {
  if (listings)
    if (const auto found = listings->find(path); found != listings->end())
      return open_folder(PictureList::parse(path, found->second));
  if (is_directory(path)) return open_folder(std::move(lists_of({path}, options, {}).front()));
  if (is_packed(path)) return open_packed(path);
  throw DataError("{}: is neither a folder nor a file of pictures (lockstep prepare images)", path);
}

}  // namespace

const Picture& PictureReader::read(const PictureStore& store, std::int64_t picture,
                                   const PictureOptions& options, const Augment& augment,
                                   const Moment* moment, std::int64_t sample) {
  store.read(picture, file_);
  with_name(store, picture, [&] {
    DecodeOptions how = decode_options(options);
    const PictureHeader header = decoder_.header(file_, how);
    const auto draws = [&](std::string_view transform) {
      return Draws(moment->seed, transform, moment->step, sample);
    };
    if (moment && augment.resized_crop) {
      Draws drawn = draws("random_resized_crop");
      how.region = draw_resized_crop(drawn, header.height, header.width);
      how.reduction = reduction_for(how.region->height, how.region->width, options.size);
      const Box<double> part = decoder_.decode(file_, how, decoded_);
      resizer_.resize(decoded_, part, options.size, options.size, sample_);
    } else {
      const Framing framing = evaluation_framing(header.height, header.width, options.size);
      const Box<double> part = decoder_.decode(file_, how, decoded_);
      resizer_.resize(decoded_, part, framing.height, framing.width, framing.window, sample_);
    }
    if (!moment) return;
    if (Draws drawn = draws("flip"); augment.flip && draw_flip(drawn)) flip(sample_);
    if (Draws drawn = draws("color_jitter"); augment.color_jitter > 0)
      apply(draw_jitter(drawn, augment.color_jitter), sample_);
  });
  return sample_;
}

std::vector<Option<PictureOptions>> PictureOptions::options() {
  using P = PictureOptions;
  return {
      option::number("size", &P::size, Range::from(1, 16384),
                     "pictures: height and width of samples; evaluations take the square at the centre of a "
                     "picture whose shorter side has 8/7 of it",
                     {.unit = "pixels", .peers = {"image_size", "img_size", "resolution", "crop_size"}}),
      option::text("labels", &P::labels,
                   "pictures: CSV file of picture and label; default: a sub-folder is a class",
                   {.may_change = true, .peers = {"label_file", "annotations", "csv"}}),
      option::flag("exif", &P::exif, "pictures: turn them upright, as their EXIF says"),
      option::number("max_pixels", &P::max_pixels, Range::from(1, 0x1p31),
                     "pictures: larger ones are refused before they are decoded", {.unit = "pixels"}),
      option::flag("skip_bad", &P::skip_bad,
                   "pictures: decode each one first, and leave out what cannot be decoded",
                   {.may_change = true}),
  };
}

PictureListings list_folders(const std::vector<std::string>& paths, const PictureOptions& options,
                             comm::HostGroup& world, const ListRules& rules) {
  std::string text;  // path, listing, path ... each ended by a zero
  comm::run_on_all(world, [&] {
    if (world.rank() != 0) return;
    std::set<std::string> folders;
    std::ranges::copy_if(paths, std::inserter(folders, folders.end()), is_directory);
    for (const PictureList& list : lists_of(folders, options, rules))
      for (const std::string& part : {list.folder(), list.text()}) text.append(part.c_str(), part.size() + 1);
  });
  std::uint64_t bytes = text.size();
  world.broadcast(&bytes, sizeof bytes, 0);
  text.resize(bytes);
  world.broadcast(text.data(), text.size(), 0);
  PictureListings listings;
  for (std::size_t at = 0; at < text.size();) {
    const std::string path = text.c_str() + at, listing = text.c_str() + at + path.size() + 1;
    at += path.size() + listing.size() + 2;
    listings.emplace(path, listing);
  }
  return listings;
}

Pictures::Pictures(const std::vector<std::string>& paths, const PictureOptions& options,
                   const Augment& augment, bool labels)
    : Pictures({}, paths, options, augment, labels) {}

Pictures::Pictures(const Request& request)
    : Pictures(request, request.files, request.pictures, request.augment, request.targets && request.labels) {
  if (!request.fields.empty()) throw UsageError("data.fields: pictures have the fields x and y; remove it");
}

Pictures::~Pictures() = default;

bool Pictures::fits(const Request& request) {
  return is_directory(request.files.front()) || is_packed(request.files.front());
}

Pictures::Pictures(const Request& request, const std::vector<std::string>& paths,
                   const PictureOptions& options, const Augment& augment, bool labels)
    : options_(options), augment_(augment), paths_(paths) {
  if (paths.empty()) throw UsageError("no pictures: name a folder");
  std::set<std::string> names;
  std::int64_t classes = 0;
  for (const std::string& path : paths) {
    Source& source = sources_.emplace_back();
    source.first = size_;
    source.store = open_store(path, options, request.listings.get());
    const PictureStore& store = *source.store;
    size_ += store.size();
    names.insert(store.classes().begin(), store.classes().end());
    for (std::int64_t i = 0; labels && i < store.size(); ++i) {
      if (store.label(i) < 0)
        throw DataError(
            "{}: has no class, which the task needs: put pictures into a folder for each class, or name a "
            "CSV file of picture and label with data.labels",
            store.name(i));
      if (store.label(i) >= max_classes)
        throw DataError("{}: its label is {}: no model has so many classes", store.name(i), store.label(i));
      classes = std::max(classes, store.label(i) + 1);
    }
    if (labels && store.classes().empty() != sources_.front().store->classes().empty())
      throw DataError("{}: its labels are {}, but those of {} are {}", path,
                      store.classes().empty() ? "numbers" : "names", paths.front(),
                      store.classes().empty() ? "names" : "numbers");
  }
  const Shape shape{colours, options.size, options.size};
  fields_.push_back({.name = "x", .dtype = DType::float32, .shape = shape});
  if (labels) fields_.push_back({.name = "y", .dtype = DType::int64, .classes = classes});
  if (labels && !names.empty()) set_classes({names.begin(), names.end()});
  normalize("x", imagenet_normalization());
}

void Pictures::set_classes(const std::vector<std::string>& names) {
  for (Source& source : sources_) {
    source.class_of.clear();
    for (const std::string& name : source.store->classes())
      source.class_of.push_back(std::ranges::find(names, name) - names.begin());
  }
  classes_ = names;
  fields_[1].classes = std::ssize(names);
}

void Pictures::number_classes(std::string_view field, const Said<std::vector<std::string>>& names) {
  if (field != "y" || fields_.size() == 1 || names.file.empty()) return;
  if (classes_.empty() != names.value.empty())
    throw DataError("{}: its labels are {}, but those of {} are {}: which is which is not known",
                    this->name(), classes_.empty() ? "numbers" : "names of classes", names.file,
                    names.value.empty() ? "numbers" : "names of classes");
  if (classes_.empty()) return;
  for (const Source& source : sources_)
    for (const std::string& name : source.store->classes())
      if (std::ranges::find(names.value, name) == names.value.end())
        throw DataError("{}: has the class {}, which {} does not know; it knows {}", this->name(),
                        quote(name), names.file, list_of(names.value));
  set_classes(names.value);
}

std::string Pictures::name() const { return name_of_files(paths_.front(), paths_.size()); }

std::string Pictures::location(std::int64_t sample) const {
  const Source& source = source_of(sources_, sample);
  return source.store->name(sample - source.first);
}

std::string Pictures::row_name(std::int64_t sample) const {
  const Source& source = source_of(sources_, sample);
  return source.store->row_name(sample - source.first);
}

std::vector<std::string> Pictures::notes() const {
  std::vector<std::string> all;
  for (const Source& source : sources_) std::ranges::copy(source.store->notes(), std::back_inserter(all));
  for (std::size_t i = 0; i < sources_.size(); ++i)
    if ((options_.skip_bad || !options_.labels.empty()) && !is_directory(paths_[i]))
      all.push_back(
          fmt::format("{}: data.labels and data.skip_bad are for folders; this file was packed with "
                      "what lockstep prepare images was told",
                      paths_[i]));
  return all;
}

std::string Pictures::listing() const {
  std::string all;
  for (std::size_t i = 0; i < sources_.size(); ++i)
    if (const std::string list = sources_[i].store->listing(); !list.empty())
      all += fmt::format("folder\t{}\n{}", on_one_line(paths_[i]), list);
  return all;
}

void Pictures::hold_on_node(comm::HostGroup& world, std::int64_t& memory_left_bytes) {
  for (const Source& source : sources_) source.store->hold_on_node(world, memory_left_bytes);
}

FieldMeaning Pictures::meaning(std::string_view field) const {
  const Field& found = field_named(*this, field);
  FieldMeaning meaning{.stored = {.dtype = found.dtype, .shape = found.shape}};
  meaning.packing = {"", paths_.front()};
  if (field == "y") {
    meaning.classes = {classes_, paths_.front()};
    return meaning;
  }
  meaning.stored.dtype = DType::uint8;
  meaning.stored.largest = levels - 1;
  meaning.by = by_;
  meaning.scale = {meaning.stored, paths_.front()};
  return meaning;
}

void Pictures::normalize(std::string_view field, std::optional<Normalization> by) {
  if (field != "x") throw UsageError("{}: its field {} is no picture, and is read as it is", name(), field);
  if (by) {
    if (std::ssize(by->mean) != colours)
      throw DataError("{}: pictures have {} colours, but the normalisation has {}", name(), colours,
                      by->mean.size());
    check_statistics(name(), *by);
    level_values_.clear();
    for (std::size_t c = 0; c < colours; ++c)
      for (int level = 0; level < levels; ++level)
        level_values_.push_back(static_cast<float>((level - by->mean[c]) / by->deviation[c]));
  }
  fields_[0].dtype = by ? DType::float32 : DType::float64;
  by_ = std::move(by);
}

std::int64_t Pictures::label_of(const Source& source, std::int64_t picture) const {
  const std::int64_t label = source.store->label(picture);
  return source.class_of.empty() ? label : source.class_of[static_cast<std::size_t>(label)];
}

std::vector<double> Pictures::column(std::string_view field) const {
  if (field != "y") return Dataset::column(field);
  field_named(*this, field);
  std::vector<double> labels;
  for (const Source& source : sources_)
    for (std::int64_t i = 0; i < source.store->size(); ++i)
      labels.push_back(static_cast<double>(label_of(source, i)));
  return labels;
}

void Pictures::read_at(std::span<const std::int64_t> samples, std::span<const Tensor> into,
                       const Moment* moment) const {
  check_read(samples, into);
  thread_local PictureReader reader;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const Source& source = source_of(sources_, samples[i]);
    const std::int64_t number = samples[i] - source.first, elements = fields_[0].shape.numel();
    const Picture& picture = reader.read(*source.store, number, options_, augment_, moment, samples[i]);
    const std::int64_t begin = static_cast<std::int64_t>(i) * elements;
    if (by_)
      by_colour(picture, into[0].data<float>() + begin, [&](std::int64_t c, std::uint8_t level) {
        return level_values_[static_cast<std::size_t>(levels * c + level)];
      });
    else
      by_colour(picture, into[0].data<double>() + begin,
                [](std::int64_t, std::uint8_t level) { return level; });
    if (into.size() == 1) continue;
    into[1].data<std::int64_t>()[i] = label_of(source, number);
  }
}

}  // namespace lockstep::data
