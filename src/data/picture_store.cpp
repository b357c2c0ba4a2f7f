#include "data/picture_store.h"

#include <fmt/format.h>

#include <utility>

#include "base/files.h"
#include "data/data_file.h"
#include "lockstep/base/error.h"
#include "lockstep/hdf5/file.h"

namespace lockstep::data {
namespace {

class Folder final : public PictureStore {
 public:
  explicit Folder(PictureList list) : list_(std::move(list)) {}

  std::int64_t size() const override { return list_.size(); }
  std::string name(std::int64_t picture) const override { return list_.name(picture); }
  std::int64_t label(std::int64_t picture) const override { return list_.label(picture); }
  const std::vector<std::string>& classes() const override { return list_.classes(); }
  void read(std::int64_t picture, std::vector<std::byte>& into) const override {
    const OpenFile file(list_.name(picture), OpenFile::Mode::read);
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
  PictureList list_;
};

class Packed final : public PictureStore {
 public:
  explicit Packed(const std::string& path) : stored_(path) {
    const hdf5::File file = hdf5::File::open(path);
    const hdf5::Dataset x = file.open_dataset("x"), offsets = file.open_dataset("x_offsets");
    if (x.dtype() != DType::uint8 || x.shape().size() != 1 || offsets.shape().size() != 1 ||
        offsets.rows() < 2)
      throw DataError(
          "{}: /x is {} {} and /x_offsets {}: of pictures they are uint8 [bytes] and [pictures + 1]", path,
          x.type_name(), shape_text(x), shape_text(offsets));
    offsets_.resize(static_cast<std::size_t>(offsets.rows()));
    offsets.read(std::span<std::int64_t>(offsets_));
    begin_ = x.extent().offset;
    for (std::size_t i = 1; i < offsets_.size(); ++i)
      if (offsets_[0] != 0 || offsets_[i] < offsets_[i - 1] || offsets_[i] > x.rows())
        throw DataError("{}: /x_offsets is damaged: element {} is {}, after {}, of {} bytes", path, i,
                        offsets_[i], offsets_[i - 1], x.rows());
    if (!file.exists("y")) return;
    const hdf5::Dataset y = file.open_dataset("y");
    if (!is_integers(y) || y.shape().size() != 1 || y.rows() != size())
      throw DataError("{}: /y is {} {}, but there are {} pictures", path, y.type_name(), shape_text(y),
                      size());
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
    return fmt::format("{}: picture {}", stored_.file.path(), picture);
  }
  std::int64_t label(std::int64_t picture) const override {
    return labels_.empty() ? -1 : labels_[static_cast<std::size_t>(picture)];
  }
  const std::vector<std::string>& classes() const override { return classes_; }
  void read(std::int64_t picture, std::vector<std::byte>& into) const override {
    const std::int64_t* const at = &offsets_[static_cast<std::size_t>(picture)];
    into.resize(static_cast<std::size_t>(at[1] - at[0]));
    stored_.file.read_at(begin_ + static_cast<std::uint64_t>(at[0]), into.data(), into.size());
    stored_.check();  // afterwards: what was read before a change is right
  }

 private:
  StoredFile stored_;
  std::uint64_t begin_ = 0;  // of /x in the file
  std::vector<std::int64_t> offsets_, labels_;
  std::vector<std::string> classes_;
};

}  // namespace

Normalization imagenet_normalization() {
  return {.mean = {123.675, 116.28, 103.53}, .deviation = {58.395, 57.12, 57.375}};
}

std::unique_ptr<PictureStore> open_folder(PictureList list) {
  return std::make_unique<Folder>(std::move(list));
}

std::unique_ptr<PictureStore> open_packed(const std::string& path) { return std::make_unique<Packed>(path); }

bool is_packed(const std::string& path) { return hdf5::File::open(path).exists("x_offsets"); }

}  // namespace lockstep::data
