// Pictures: folders of JPEG and PNG files, and files of such pictures, decoded as they are read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/host_group.h"
#include "lockstep/data/augment.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {

class PictureStore;

/// Pictures as samples: x float32 [3, size, size], normalised by mean and deviation of ImageNet
/// (torchvision's) unless normalize() sets others; y int64, the class, if each picture has one.
///
/// A sample is read as evaluations do it everywhere: its shorter side becomes round(size * 8 / 7) pixels
/// (bilinear, antialiased), and the square of `size` at its centre is taken. For training, resized_crop,
/// flip and color_jitter of Augment come into their place.
///
/// Each path is a folder (a sub-folder is a class) or an HDF5 file of `lockstep prepare images`. Classes are
/// numbered in the order of their names, over all paths. Opening throws DataError as PictureList and HDF5 do,
/// and if a picture has no class where labels are needed. Reading throws DataError that names the picture if
/// it cannot be decoded, or has changed since it was listed.
class Pictures final : public Dataset {
 public:
  /// labels: whether there is a field y.
  Pictures(const std::vector<std::string>& paths, const PictureOptions& options, const Augment& augment = {},
           bool labels = true);
  /// data.format = pictures.
  explicit Pictures(const Request& request);
  static bool fits(const Request& request);  ///< a folder, or a file of pictures
  ~Pictures() override;

  std::int64_t size() const override { return size_; }  ///< pictures
  const std::vector<Field>& fields() const override { return fields_; }
  std::string name() const override;
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    read_at(samples, into, nullptr);
  }
  void read_to_train(std::span<const std::int64_t> samples, std::span<const Tensor> into,
                     const Moment& moment) const override {
    read_at(samples, into, &moment);
  }
  std::vector<double> column(std::string_view field) const override;
  std::string location(std::int64_t sample) const override;
  /// The name of its file below its folder; none of a picture in a packed file.
  std::string row_name(std::int64_t sample) const override;
  bool is_finite() const override { return true; }
  FieldMeaning meaning(std::string_view field) const override;
  bool can_normalize() const override { return true; }
  void normalize(std::string_view field, std::optional<Normalization> by) override;
  void number_classes(std::string_view field, const Said<std::vector<std::string>>& names) override;
  std::vector<std::string> notes() const override;
  std::string listing() const override;
  /// Files of pictures; those of a folder stay where they are.
  void hold_on_node(comm::HostGroup& world, std::int64_t& memory_left_bytes) override;

 private:
  struct Source {
    std::int64_t first = 0;
    std::unique_ptr<PictureStore> store;
    std::vector<std::int64_t> class_of;  // by the source's own class; empty: labels are numbers
  };

  Pictures(const Request& request, const std::vector<std::string>& paths, const PictureOptions& options,
           const Augment& augment, bool labels);
  std::int64_t label_of(const Source& source, std::int64_t picture) const;
  void read_at(std::span<const std::int64_t> samples, std::span<const Tensor> into,
               const Moment* moment) const;
  void set_classes(const std::vector<std::string>& names);

  PictureOptions options_;
  Augment augment_;
  std::int64_t size_ = 0;
  std::vector<Field> fields_;
  std::vector<Source> sources_;
  std::vector<std::string> paths_, classes_;
  std::optional<Normalization> by_;
  std::vector<float> level_values_;  // [3, 256]: what a level becomes
};

/// How list_folders() goes about it.
struct ListRules {
  /// options.labels is of these folders: it names pictures of each of them, and no others. If not, a folder
  /// of which it names none has its sub-folders as classes.
  bool labels_are_theirs = true;
  bool decodes = true;  ///< with options.skip_bad, to leave out what cannot be decoded
};
/// Lists those of the paths that are folders, once, on rank 0, for the Request of each rank. Collective; the
/// same DataError on every rank, as Pictures throw it.
PictureListings list_folders(const std::vector<std::string>& paths, const PictureOptions& options,
                             comm::HostGroup& world, const ListRules& rules = {});

}  // namespace lockstep::data
