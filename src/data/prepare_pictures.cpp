// Packs folders of pictures into HDF5 files, which parallel file systems read faster than many small files.
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/output.h"
#include "base/text.h"
#include "data/data_file.h"
#include "data/image_writer.h"
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

/// "a.h5"; of several files "a-00001-of-00004.h5".
std::string path_of(const std::string& out, int file, int files) {
  if (files == 1) return out;
  const std::size_t dot = out.ends_with(".h5") ? out.size() - 3 : out.size();
  return fmt::format("{}-{:05}-of-{:05}{}", out.substr(0, dot), file + 1, files, out.substr(dot));
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
    decoder_.decode(file, {.exif = options_.pictures.exif, .max_pixels = options_.pictures.max_pixels},
                    decoded_);
    if (options_.encode == PackOptions::Encode::keep) return file;
    const Box<double> all{.height = static_cast<double>(decoded_.height),
                          .width = static_cast<double>(decoded_.width)};
    const Picture* picture = &decoded_;
    if (const std::int64_t size = options_.size; size > 0) {
      const auto [height, width] = scaled(decoded_, size);
      Box<std::int64_t> window{.height = height, .width = width};
      if (options_.encode == PackOptions::Encode::raw)
        window = {.top = (height - size) / 2, .left = (width - size) / 2, .height = size, .width = size};
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

 private:
  const PackOptions& options_;
  PictureDecoder decoder_;
  Resizer resizer_;
  Picture decoded_, resized_;
  std::vector<std::byte> encoded_;
};

/// One of the files: pictures [begin, end) of the list.
class Pack {
 public:
  Pack(const PictureList& list, const PackOptions& options, std::string path, std::string origin)
      : list_(list), options_(options), path_(std::move(path)), origin_(std::move(origin)) {}

  /// Whether it was made before, of the same pictures with the same options.
  bool is_made() const {
    if (!exists(path_)) return false;
    const hdf5::File file = hdf5::File::open(path_);
    return file.exists("x") && data::text_of(file.open_dataset("x"), origin_attribute) == origin_;
  }

  void make(std::int64_t begin, std::int64_t end, bool replace) {
    collect(begin, end);
    if (!bad_.empty() && !options_.skip_bad)
      throw DataError("{} cannot be decoded; remove them, or leave them out with --skip-bad: {}",
                      pluralized(bad_.size(), "picture"), list_of(bad_, 8, "; "));
    if (offsets_.size() == 1) throw DataError("{}: no picture is left for it", path_);
    write_whole({.path = path_, .replace = replace}, [&](hdf5::File& file) { write(file); });
  }

  std::int64_t pictures() const { return std::ssize(offsets_) - 1; }
  const std::vector<std::string>& bad() const { return bad_; }

 private:
  /// Into a temporary file, as HDF5 needs the size first.
  void collect(std::int64_t begin, std::int64_t end) {
    spool_.truncate(0);  // maybe of an earlier process
    Encoder encoder(options_);
    std::vector<std::byte> bytes;
    std::uint64_t done = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      try {
        const OpenFile file(list_.name(i), OpenFile::Mode::read);
        bytes.resize(file.size());
        file.read_at(0, bytes.data(), bytes.size());
        const std::span<const std::byte> encoded = encoder.encode(bytes);
        spool_.write_at(done, encoded.data(), encoded.size());
        done += encoded.size();
      } catch (const DataError& error) {
        const std::string what = error.what(), name = list_.name(i);
        bad_.push_back(what.starts_with(name) ? what : fmt::format("{}: {}", name, what));
        continue;
      }
      offsets_.push_back(static_cast<std::int64_t>(done));
      labels_.push_back(list_.label(i));
    }
  }

  void write(hdf5::File& file) {
    const std::int64_t bytes = offsets_.back(), images = pictures(), size = options_.size;
    const bool raw = options_.encode == PackOptions::Encode::raw;
    hdf5::Dataset x = raw ? file.create_dataset("x", DType::uint8, {images, 3, size, size})
                          : file.create_dataset("x", DType::uint8, {bytes});
    x.set_attribute(origin_attribute, origin_);
    if (raw) {
      x.set_attribute("mean", std::span<const double>(imagenet_normalization().mean));
      x.set_attribute("std", std::span<const double>(imagenet_normalization().deviation));
    } else {
      x.set_attribute("encoding", std::string("pictures"));
      file.create_dataset("x_offsets", DType::int64, {images + 1})
          .write_rows(0, images + 1, std::span<const std::int64_t>(offsets_));
    }
    const std::int64_t row_bytes = raw ? 3 * size * size : 1,
                       rows_at_once = std::max<std::int64_t>(1, (1 << 20) / row_bytes);
    std::vector<std::uint8_t> piece;
    for (std::int64_t row = 0; row < x.rows(); row += rows_at_once) {
      const std::int64_t rows = std::min(rows_at_once, x.rows() - row);
      piece.resize(static_cast<std::size_t>(rows * row_bytes));
      spool_.read_at(static_cast<std::uint64_t>(row * row_bytes), piece.data(), piece.size());
      x.write_rows(row, rows, std::span<const std::uint8_t>(piece));
    }
    if (std::ranges::find(labels_, -1) != labels_.end()) return;
    hdf5::Dataset y = file.create_dataset("y", DType::int64, {images});
    y.write_rows(0, images, std::span<const std::int64_t>(labels_));
    if (!list_.classes().empty()) store_names(y, "classes", list_.classes());
  }

  const PictureList& list_;
  const PackOptions& options_;
  const std::string path_, origin_;
  OpenFile spool_{temporary_path(path_, "encoded"), OpenFile::Mode::read_write_or_create};
  Draft draft_{spool_.path()};
  std::vector<std::int64_t> offsets_{0}, labels_;
  std::vector<std::string> bad_;
};

}  // namespace

Prepared prepare_pictures(const std::string& folder, const Output& output, const PackOptions& options,
                          comm::HostGroup& world) {
  if (options.encode == PackOptions::Encode::raw && options.size == 0)
    throw UsageError("--encode raw: needs --size N, the height and width of each image");
  if (options.encode == PackOptions::Encode::keep && options.size > 0)
    throw UsageError("--size: changes pictures, which --encode keep does not; give --encode jpeg or raw");
  const PictureListings listings = list_folders({folder}, options.pictures, world);
  if (listings.empty()) throw DataError("{}: is no folder", folder);
  const PictureList list = PictureList::parse(folder, listings.at(folder));
  std::int64_t bytes = 0;
  for (std::int64_t i = 0; i < list.size(); ++i) bytes += list.bytes(i);
  const auto files = static_cast<int>(std::min<std::int64_t>(
      options.files > 0 ? options.files : bytes / options.file_bytes + 1, list.size()));
  const std::string origin = fmt::format("{} pictures {:016x}, {}, size {}", list.size(),
                                         purpose_of(list.text()), option::word(options.encode), options.size);
  Prepared prepared{.notes = list.notes()};
  std::int64_t pictures = 0;  // packed by this rank
  comm::run_on_all(world, [&] {
    for (int file = world.rank(); file < files; file += world.size()) {
      Pack pack(list, options, path_of(output.path, file, files), fmt::format("{}, file {}", origin, file));
      if (pack.is_made()) {
        prepared.notes.push_back(fmt::format("{}: is made already", path_of(output.path, file, files)));
        continue;
      }
      check_output(std::span(&folder, 1), {path_of(output.path, file, files), output.replace});
      pack.make(list.size() * file / files, list.size() * (file + 1) / files, output.replace);
      pictures += pack.pictures();
      for (const std::string& bad : pack.bad()) prepared.warnings.push_back("left out: " + bad);
    }
  });
  for (const std::int64_t count : comm::all_gather_values(world, pictures)) prepared.samples += count;
  prepared.class_names = list.classes();
  prepared.classes = std::ssize(list.classes());
  return prepared;
}

}  // namespace lockstep::data
