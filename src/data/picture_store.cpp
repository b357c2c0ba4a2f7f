#include "data/picture_store.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "base/cores.h"
#include "base/files.h"
#include "base/thread.h"
#include "data/data_file.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::data {
namespace {

class Folder final : public PictureStore {
 public:
  explicit Folder(PictureList list) : list_(std::move(list)) {}

  std::int64_t size() const override { return list_.size(); }
  std::string name(std::int64_t picture) const override { return list_.name(picture); }
  std::string row_name(std::int64_t picture) const override {
    return list_.name(picture).substr(list_.folder().size() + 1);
  }
  std::int64_t label(std::int64_t picture) const override { return list_.label(picture); }
  const std::vector<std::string>& classes() const override { return list_.classes(); }
  void read(std::int64_t picture, std::vector<std::byte>& into) const override {
    const OpenFile file = open(list_.name(picture));
    const auto bytes = static_cast<std::uint64_t>(list_.bytes(picture));
    if (file.size() != bytes)
      throw DataError(
          "{}: has {} bytes, but had {} when the data were listed: a run needs the same data to its end",
          file.path(), file.size(), bytes);
    into.resize(bytes);
    file.read_at(0, into.data(), bytes);
  }
  std::vector<std::string> notes() const override { return list_.notes(); }
  std::string listing() const override { return list_.text(); }

 private:
  static OpenFile open(const std::string& path) {
    try {
      return OpenFile(path, OpenFile::Mode::read);
    } catch (const UsageError& error) {  // no permission: of one file among many, it is the data's fault
      throw DataError("{}", error.what());
    }
  }

  PictureList list_;
};

class Packed final : public PictureStore {
 public:
  explicit Packed(const std::string& path) : path_(path) {
    const auto opened = std::make_shared<const hdf5::File>(hdf5::File::open(path));
    const hdf5::File& file = *opened;
    hdf5::Dataset x = file.open_dataset("x");
    const hdf5::Dataset offsets = file.open_dataset("x_offsets");
    if (x.dtype() != DType::uint8 || x.shape().size() != 1 || offsets.shape().size() != 1 ||
        offsets.rows() < 2)
      throw DataError(
          "{}: /x is {} {} and /x_offsets {}: of pictures they are uint8 [bytes] and [pictures + 1]", path,
          x.type_name(), shape_text(x), shape_text(offsets));
    offsets.check_stored();
    offsets_.resize(static_cast<std::size_t>(offsets.rows()));
    offsets.read(std::span<std::int64_t>(offsets_));
    for (std::size_t i = 1; i < offsets_.size(); ++i)
      if (offsets_[0] != 0 || offsets_[i] < offsets_[i - 1] || offsets_[i] > x.rows())
        throw DataError("{}: /x_offsets is damaged: element {} is {}, after {}, of {} bytes", path, i,
                        offsets_[i], offsets_[i - 1], x.rows());
    std::int64_t no_memory = 0;
    StoredFiles files;
    bytes_ = std::make_unique<RowStore>(opened, std::move(x), DType::uint8, no_memory, files);
    if (!file.exists("y")) return;
    const hdf5::Dataset y = file.open_dataset("y");
    if (!is_integers(y) || y.shape().size() != 1 || y.rows() != size())
      throw DataError("{}: /y is {} {}, but there are {} pictures", path, y.type_name(), shape_text(y),
                      size());
    y.check_stored();
    labels_.resize(static_cast<std::size_t>(size()));
    y.read(std::span<std::int64_t>(labels_));
    classes_ = names_of(y, "classes");
    for (std::size_t i = 0; i < labels_.size(); ++i)
      if (labels_[i] < 0 || (!classes_.empty() && labels_[i] >= std::ssize(classes_)))
        throw DataError("{}: label {} of /y is {}: labels count from 0, and {} classes have names", path, i,
                        labels_[i], classes_.size());
  }

  std::int64_t size() const override { return std::ssize(offsets_) - 1; }
  std::string name(std::int64_t picture) const override {
    return fmt::format("{}: picture {}", path_, picture);
  }
  std::int64_t label(std::int64_t picture) const override {
    return labels_.empty() ? -1 : labels_[static_cast<std::size_t>(picture)];
  }
  const std::vector<std::string>& classes() const override { return classes_; }
  void read(std::int64_t picture, std::vector<std::byte>& into) const override {
    const std::int64_t* const at = &offsets_[static_cast<std::size_t>(picture)];
    into.clear();
    if (at[0] == at[1]) return;
    bytes_->with_values(at[0], at[1] - at[0], [&](const auto* bytes) {
      const std::span stored = std::as_bytes(std::span(bytes, static_cast<std::size_t>(at[1] - at[0])));
      into.assign(stored.begin(), stored.end());
    });
  }
  void hold_on_node(comm::HostGroup& world, std::int64_t& memory_left_bytes) override {
    RowStore* const store = bytes_.get();
    RowStore::hold_on_node({&store, 1}, world, memory_left_bytes);
  }

 private:
  std::string path_;
  std::unique_ptr<RowStore> bytes_;
  std::vector<std::int64_t> offsets_, labels_;
  std::vector<std::string> classes_;
};

}  // namespace

Normalization imagenet_normalization() {
  return {.mean = {123.675, 116.28, 103.53}, .deviation = {58.395, 57.12, 57.375}};
}

std::vector<std::string> find_bad(const PictureStore& store, const PictureOptions& options) {
  std::vector<std::string> why(static_cast<std::size_t>(store.size()));
  constexpr std::size_t at_once = 64;  // with one decoder
  for_each_in_threads(process_cores().size(), 0, (why.size() + at_once - 1) / at_once, [&](std::size_t part) {
    PictureDecoder decoder;
    Picture picture;
    std::vector<std::byte> bytes;
    for (std::size_t i = part * at_once; i < std::min(why.size(), (part + 1) * at_once); ++i) {
      const auto number = static_cast<std::int64_t>(i);
      try {
        store.read(number, bytes);
        with_name(store, number, [&] { decoder.decode(bytes, decode_options(options), picture); });
      } catch (const DataError& error) {
        why[i] = error.what();
      }
    }
  });
  return why;
}

std::unique_ptr<PictureStore> open_folder(PictureList list) {
  return std::make_unique<Folder>(std::move(list));
}

std::unique_ptr<PictureStore> open_packed(const std::string& path) { return std::make_unique<Packed>(path); }

bool is_packed(const std::string& path) {
  const hdf5::File file = hdf5::File::open(path);
  if (!file.exists("x_offsets")) return false;
  if (!file.exists("x") || file.kind("x") != hdf5::ObjectKind::dataset) return true;
  const hdf5::Dataset x =
      file.open_dataset("x");  // a ragged field of numbers has rows, or numbers of more bits
  return x.dtype() == DType::uint8 && x.shape().size() == 1;
}

}  // namespace lockstep::data
