// Telling images, text and checkpoints apart.
#include "data/contents.h"

#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

bool is_checkpoint(const hdf5::File& file) {
  return file.has_attribute("format") && file.is_text_attribute("format") &&
         file.text_attribute("format") == "lockstep";
}

const char* describe(const hdf5::File& file) {
  if (is_checkpoint(file)) return "a checkpoint";
  if (file.exists("/tokens")) return "a text data file";
  if (file.exists("/x")) return "a data file of images";
  return "no data file";
}

hdf5::Dataset open_or_explain(const hdf5::File& file, const char* name, const char* needed) {
  if (!file.exists(name)) {
    throw DataError("{}: {} is missing: this is {}, but {}", file.file_path(), name, describe(file), needed);
  }
  return file.open_dataset(name);
}

}  // namespace

hdf5::Dataset open_images(const hdf5::File& file) {
  return open_or_explain(file, "/x", "images are needed (lockstep prepare csv, idx or cifar)");
}

hdf5::Dataset open_tokens(const hdf5::File& file) {
  return open_or_explain(file, "/tokens", "text is needed (lockstep prepare text)");
}

}  // namespace lockstep::data
