// Where pictures are stored, still encoded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/picture.h"
#include "data/picture_list.h"
#include "lockstep/base/error.h"
#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Encoded pictures by number. Several threads may read.
class PictureStore {
 public:
  virtual ~PictureStore() = default;

  virtual std::int64_t size() const = 0;                           ///< pictures
  virtual std::string name(std::int64_t picture) const = 0;        ///< "DIR/cat/1.jpg", "a.h5: picture 7"
  virtual std::string row_name(std::int64_t) const { return ""; }  ///< see Dataset
  virtual std::int64_t label(std::int64_t picture) const = 0;      ///< class or number; -1: none
  virtual const std::vector<std::string>& classes() const = 0;     ///< in the order of their labels; or empty
  /// The bytes of its file. DataError, which names it, if it is gone, or has changed since the store was
  /// opened.
  virtual void read(std::int64_t picture, std::vector<std::byte>& into) const = 0;
  virtual void hold_on_node(comm::HostGroup&, std::int64_t&) {}  ///< see Dataset
  virtual std::vector<std::string> notes() const { return {}; }  ///< what was left out
  virtual std::string listing() const { return ""; }             ///< PictureList::text(); empty: of a file
};

/// Calls `use`, whose DataErrors get the picture's name.
template <class Use>
void with_name(const PictureStore& store, std::int64_t picture, const Use& use) {
  try {
    use();
  } catch (const DataError& error) {
    throw DataError("{}: {}", store.name(picture), error.what());
  }
}

inline DecodeOptions decode_options(const PictureOptions& options) {
  return {.exif = options.exif, .max_pixels = options.max_pixels};
}

/// Decodes each picture, on all cores. Why it cannot be decoded, by picture; empty: it can.
std::vector<std::string> find_bad(const PictureStore& store, const PictureOptions& options);

/// ImageNet's, by which torchvision's models learned: (0.485, 0.456, 0.406) and (0.229, 0.224, 0.225) of 255.
Normalization imagenet_normalization();
/// A folder, by its list.
std::unique_ptr<PictureStore> open_folder(PictureList list);
/// An HDF5 file of `lockstep prepare images`: /x bytes, /x_offsets, /y. DataError if it is none or damaged.
std::unique_ptr<PictureStore> open_packed(const std::string& path);
/// Whether the file at this path has /x_offsets. DataError if it is not HDF5.
bool is_packed(const std::string& path);

}  // namespace lockstep::data
