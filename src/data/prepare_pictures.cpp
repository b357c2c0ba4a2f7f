// Packs folders of pictures into HDF5 files, which parallel file systems read faster than many small files.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/output.h"
#include "base/text.h"
#include "data/array_writer.h"
#include "data/data_file.h"
#include "data/input.h"
#include "data/picture_files.h"
#include "data/picture_store.h"
#include "data/prepare.h"
#include "data/transforms.h"
#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/data/pictures.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::data {
namespace {

constexpr const char* origin_attribute = "made_of";
constexpr int jpeg_quality = 95;
constexpr std::int64_t max_size = 16384;  // as of data.size

/// "a.h5"; of several files "a-00001-of-00004.h5", or "a-*-of-00004.h5" for `file` "*".
std::string path_of(const std::string& out, const std::string& file, int files) {
  if (files == 1) return out;
  const std::size_t dot = out.ends_with(".h5") ? out.size() - 3 : out.size();
  return fmt::format("{}-{}-of-{:05}{}", out.substr(0, dot), file, files, out.substr(dot));
}
std::string path_of(const std::string& out, int file, int files) {
  return path_of(out, fmt::format("{:05}", file + 1), files);
}

/// DataError if an earlier preparation left another number of files: OUT-*.h5 would mix them.
void check_no_other_parts(const std::string& out, int files) {
  namespace fs = std::filesystem;
  std::error_code error;  // no folder: writing says so
  for (fs::directory_iterator at(fs::absolute(out).parent_path(), error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename();
    const std::size_t of = name.rfind("-of-");
    int others = 0;
    if (files > 1 && of != name.npos && of >= 5 && parse_number(name.substr(of + 4, 5), others) &&
        others != files && fs::path(path_of(out, name.substr(of - 5, 5), others)).filename() == name)
      throw DataError("{}: is of an earlier preparation in {} files; remove those, or choose another --out",
                      at->path().string(), others);
  }
}

/// As stored: those of the folder, or of another data file.
struct Classes {
  std::vector<std::string> names;
  std::vector<std::int64_t> number_of;  // by the folder's number; empty: the same

  std::int64_t number(std::int64_t label) const {
    return number_of.empty() ? label : number_of[static_cast<std::size_t>(label)];
  }
};

/// `from`: the data file whose numbers they get; empty: none.
Classes classes_of(const PictureList& list, const std::string& from) {
  if (from.empty()) return {.names = list.classes(), .number_of = {}};
  const hdf5::File file = hdf5::File::open(from);
  Classes classes;
  if (file.exists("/y")) classes.names = names_of(file.open_dataset("/y"), "classes");
  if (classes.names.empty() || list.classes().empty())
    throw DataError("{}: has no names of classes, which --statistics needs",
                    classes.names.empty() ? from : list.folder());
  for (const std::string& name : list.classes()) {
    const auto found = std::ranges::find(classes.names, name);
    if (found == classes.names.end())
      throw DataError("{}: has the class {}, which {} does not know; it knows {}", list.folder(), quote(name),
                      from, list_of(classes.names));
    classes.number_of.push_back(found - classes.names.begin());
  }
  return classes;
}

/// In their order.
std::vector<std::string> of_all_ranks(comm::HostGroup& world, const std::vector<std::string>& lines) {
  std::vector<std::string> all;
  for (const std::string& text : world.all_gather_texts(fmt::format("{}", fmt::join(lines, "\n"))))
    for (const std::string_view line : lines_of(text)) all.emplace_back(line);
  std::ranges::sort(all);
  return all;
}

/// The shorter side becomes `size` pixels.
std::pair<std::int64_t, std::int64_t> scaled(const Picture& picture, std::int64_t size) {
  const std::int64_t shorter = std::min(picture.height, picture.width);
  const auto side = [&](std::int64_t extent) { return extent == shorter ? size : size * extent / shorter; };
  return {side(picture.height), side(picture.width)};
}

/// Encodes pictures one after another. Keeps its buffers.
class Encoder {
 public:
  explicit Encoder(const PackOptions& options) : options_(options) {}

  /// The bytes to store of a picture's file. DataError, which does not name it, if it cannot be decoded.
  std::span<const std::byte> encode(std::span<const std::byte> file) {
    decoder_.decode(file, decode_options(options_.pictures), decoded_);
    if (options_.encode == PackOptions::Encode::keep) return file;
    const Box<double> all{.height = static_cast<double>(decoded_.height),
                          .width = static_cast<double>(decoded_.width)};
    const Picture* picture = &decoded_;
    if (const std::int64_t size = options_.size; size > 0) {
      const auto [height, width] = scaled(decoded_, size);
      if (height * width > options_.pictures.max_pixels)
        throw DataError("its {} x {} pixels would become {} x {}", decoded_.height, decoded_.width, height,
                        width);
      Box<std::int64_t> window{.height = height, .width = width};
      if (options_.encode == PackOptions::Encode::raw) window = centre_of(height, width, size);
      resizer_.resize(decoded_, all, height, width, window, resized_);
      picture = &resized_;
    }
    if (options_.encode == PackOptions::Encode::jpeg) {
      encode_jpeg(*picture, jpeg_quality, encoded_);
      return encoded_;
    }
    const auto pixels = static_cast<std::size_t>(picture->height * picture->width);
    encoded_.resize(3 * pixels);
    for (std::size_t i = 0; i < pixels; ++i)
      for (std::size_t c = 0; c < 3; ++c)
        encoded_[c * pixels + i] = static_cast<std::byte>(picture->pixels[3 * i + c]);
    return encoded_;
  }
  const std::string& warning() const { return decoder_.warning(); }  ///< of the last picture; empty: none

 private:
  const PackOptions& options_;
  PictureDecoder decoder_;
  Resizer resizer_;
  Picture decoded_, resized_;
  std::vector<std::byte> encoded_;
};

std::int64_t in_ns(const timespec& time) { return time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec; }

/// The pictures in a file that was made before of pictures [begin, end), which have not changed since, with
/// the same options; none: there is no such file.
std::optional<std::int64_t> pictures_in(const std::string& path, const std::string& origin,
                                        const PictureStore& store, std::int64_t begin, std::int64_t end) try {
  struct stat made {};
  if (::stat(path.c_str(), &made) != 0) return {};
  for (std::int64_t i = begin; i < end; ++i)
    if (struct stat picture{}; ::stat(store.name(i).c_str(), &picture) != 0 ||
                               std::max(in_ns(picture.st_mtim), in_ns(picture.st_ctim)) > in_ns(made.st_mtim))
      return {};
  const hdf5::File file = hdf5::File::open(path);
  if (!file.exists("x") || data::text_of(file.open_dataset("x"), origin_attribute) != origin) return {};
  return file.exists("x_offsets") ? file.open_dataset("x_offsets").rows() - 1 : file.open_dataset("x").rows();
} catch (const DataError&) {  // no HDF5 file
  return {};
}

/// One of the files.
class Pack {
 public:
  Pack(const PictureStore& pictures, const Classes& classes, const PackOptions& options, std::string path,
       std::string origin)
      : source_(pictures),
        classes_(classes),
        options_(options),
        path_(std::move(path)),
        origin_(std::move(origin)) {
    if (::flock(spool_.descriptor(), LOCK_EX | LOCK_NB) != 0)
      throw UsageError("{}: another process is making it", path_);
  }

  /// Of pictures [begin, end).
  void make(std::int64_t begin, std::int64_t end, bool replace) {
    collect(begin, end);
    if (!bad.empty() && !options_.pictures.skip_bad) return;
    if (offsets_.size() == 1) throw DataError("{}: no picture is left for it", path_);
    write(replace);
  }

  std::int64_t pictures() const { return std::ssize(offsets_) - 1; }

  std::vector<std::string> bad;      ///< why pictures cannot be decoded
  std::vector<std::string> damaged;  ///< what is wrong with some that can

 private:
  /// Into a temporary file, as HDF5 needs the size first.
  void collect(std::int64_t begin, std::int64_t end) {
    spool_.truncate(0);  // maybe of an earlier process
    Encoder encoder(options_);
    std::vector<std::byte> bytes;
    std::span<const std::byte> encoded;
    std::uint64_t done = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      try {
        source_.read(i, bytes);
        with_name(source_, i, [&] { encoded = encoder.encode(bytes); });
      } catch (const DataError& error) {
        bad.emplace_back(error.what());
        continue;
      }
      if (!encoder.warning().empty())
        damaged.push_back(fmt::format("{}: decoded, but damaged: {}", source_.name(i), encoder.warning()));
      spool_.write_at(done, encoded.data(), encoded.size());
      done += encoded.size();
      offsets_.push_back(static_cast<std::int64_t>(done));
      labels_.push_back(classes_.number(source_.label(i)));
    }
  }

  void write(bool replace) {
    const std::int64_t images = pictures(), size = options_.size;
    const bool raw = options_.encode == PackOptions::Encode::raw,
               has_labels = std::ranges::find(labels_, -1) == labels_.end();
    std::vector<NewArray> arrays{
        {.name = "x",
         .rows = raw ? images : offsets_.back(),
         .dtype = DType::uint8,
         .row = raw ? Shape{3, size, size} : Shape{},
         .normalizes = raw,
         .by = imagenet_normalization(),
         .texts = {{origin_attribute, origin_}, {"encoding", raw ? "" : "pictures"}}}};
    if (!raw) arrays.push_back({.name = "x_offsets", .rows = images + 1, .dtype = DType::int64});
    if (has_labels)
      arrays.push_back({.name = "y",
                        .rows = images,
                        .dtype = DType::int64,
                        .texts = {{"classes", fmt::format("{}", fmt::join(classes_.names, "\n"))}}});
    ArrayWriter writer({.path = path_, .replace = replace}, arrays);
    const std::int64_t bytes = raw ? images * 3 * size * size : offsets_.back();
    std::vector<std::uint8_t> block;
    for (std::int64_t begin = 0; begin < bytes; begin += std::ssize(block)) {
      block.resize(static_cast<std::size_t>(std::min<std::int64_t>(1 << 20, bytes - begin)));
      spool_.read_at(static_cast<std::uint64_t>(begin), block.data(), block.size());
      writer.add(0, std::span<const std::uint8_t>(block));
    }
    if (!raw) writer.add(1, std::span<const std::int64_t>(offsets_));
    if (has_labels) writer.add(arrays.size() - 1, std::span<const std::int64_t>(labels_));
    writer.finish();
    writer.publish();
  }

  const PictureStore& source_;
  const Classes& classes_;
  const PackOptions& options_;
  const std::string path_, origin_;
  OpenFile spool_{temporary_path(path_, "encoded"), OpenFile::Mode::read_write_or_create};
  Draft draft_{spool_.path()};
  std::vector<std::int64_t> offsets_{0}, labels_;
};

}  // namespace

Summary prepare_pictures(const std::string& folder, const Output& output, const PackOptions& options,
                         comm::HostGroup& world) {
  if (options.encode == PackOptions::Encode::raw && options.size == 0)
    throw UsageError("--encode raw: needs --size N, the height and width of each image");
  if (options.encode == PackOptions::Encode::keep && options.size != 0)
    throw UsageError("--size: changes pictures, which --encode keep does not; give --encode jpeg or raw");
  if (options.files < 0) throw UsageError("--files {}: must be 1 or more, or 0", options.files);
  if (options.size < 0 || options.size > max_size)
    throw UsageError("--size {}: must be from 1 to {} pixels", options.size, max_size);
  const PictureListings listings = list_folders({folder}, options.pictures, world,
                                                {.decodes = false});  // they are decoded once, to be packed
  if (listings.empty()) throw DataError("{}: is no folder", folder);
  std::string_view entries = listings.at(folder);
  PictureList list = PictureList::parse(folder, entries);
  while (entries.starts_with('#')) entries.remove_prefix(entries.find('\n') + 1);  // notes of other files
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < list.size(); ++i) {
    bytes += list.bytes(i);
    if (list.label(i) < 0 && !list.classes().empty())
      throw DataError("{}: has no class, but other pictures have: move it into the folder of one, or away",
                      list.name(i));
  }
  const auto files = static_cast<int>(std::min<std::int64_t>(
      options.files > 0 ? options.files : bytes / options.file_bytes + 1, list.size()));
  Classes classes;
  comm::run_on_all(world, [&] {
    check_no_other_parts(output.path, files);
    classes = classes_of(list, options.statistics);
  });
  Summary summary{.path = path_of(output.path, "*", files),
                  .classes = std::ssize(classes.names),
                  .notes = list.notes(),
                  .class_names = classes.names};
  std::string origin = fmt::format("{} pictures {:016x}, {}, size {}{}", list.size(), purpose_of(entries),
                                   option::word(options.encode), options.size,
                                   options.pictures.skip_bad ? ", without bad ones" : "");
  if (!options.statistics.empty())
    origin += fmt::format(", classes {:016x}", purpose_of(fmt::format("{}", fmt::join(classes.names, "\n"))));
  const std::unique_ptr<PictureStore> store = open_folder(std::move(list));
  std::vector<std::string> inputs{folder};
  for (const std::string& other : {options.pictures.labels, options.statistics})
    if (!other.empty()) inputs.push_back(other);
  std::int64_t pictures = 0;  // packed by this rank
  std::vector<std::string> notes, bad, damaged, made;
  comm::run_on_all(world, [&] {
    for (int file = world.rank(); file < files; file += world.size()) {
      const std::string path = path_of(output.path, file, files),
                        of = fmt::format("{}, file {}", origin, file);
      const std::int64_t begin = store->size() * file / files, end = store->size() * (file + 1) / files;
      const auto made_before = output.replace ? std::nullopt : pictures_in(path, of, *store, begin, end);
      if (made_before) {
        pictures += *made_before;
        notes.push_back(fmt::format("{}: is made already", path));
        continue;
      }
      check_output(inputs, {path, output.replace});
      Pack pack(*store, classes, options, path, of);
      pack.make(begin, end, output.replace);
      if (pack.bad.empty() || options.pictures.skip_bad) made.push_back(path);
      pictures += pack.pictures();
      std::ranges::copy(pack.bad, std::back_inserter(bad));
      std::ranges::copy(pack.damaged, std::back_inserter(damaged));
    }
  });
  bad = of_all_ranks(world, bad);
  if (!bad.empty() && !options.pictures.skip_bad) {
    for (const std::string& path : made)
      if (!output.replace) remove_quietly(path);  // else there was a file before
    throw DataError("{} cannot be decoded; remove them, or leave them out with --skip-bad: {}",
                    pluralized(bad.size(), "picture"), list_of(bad, 8, "; "));
  }
  std::ranges::copy(of_all_ranks(world, notes), std::back_inserter(summary.notes));
  for (const std::string& one : bad) summary.warnings.push_back("left out: " + one);
  std::ranges::copy(of_all_ranks(world, damaged), std::back_inserter(summary.warnings));
  for (const std::int64_t count : comm::all_gather_values(world, pictures)) summary.samples += count;
  return summary;
}

}  // namespace lockstep::data
