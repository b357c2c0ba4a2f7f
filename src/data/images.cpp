// Images: labelled images of a file, and which files hold some.
#include <vector>

#include "data/data_file.h"
#include "lockstep/base/error.h"
#include "lockstep/data/arrays.h"

namespace lockstep::data {

std::vector<Images::Array> Images::arrays_of(const std::vector<std::string>& paths, bool labels) {
  if (paths.empty()) throw UsageError("no data files were named");
  std::vector<Array> arrays{{.name = "x", .path = "/x", .content = Content::image}};
  if (labels || hdf5::File::open(paths.front()).exists("/y"))
    arrays.push_back({.name = "y", .path = "/y", .content = Content::label});
  return arrays;
}

Images::Images(const std::string& path, const ImagesOptions& options)
    : Images(std::vector<std::string>{path}, options) {}

Images::Images(const std::vector<std::string>& paths, const ImagesOptions& options)
    : Arrays(paths, arrays_of(paths, options.labels), options.memory_limit_bytes) {
  const auto channels = static_cast<std::size_t>(fields()[0].shape[0]);
  if (!options.mean.empty() || !options.deviation.empty()) {
    if (options.mean.size() != channels || options.deviation.size() != channels) {
      throw UsageError("{}: {} means and {} deviations were given for images of {} channels", name(),
                       options.mean.size(), options.deviation.size(), channels);
    }
    normalize("x", {{.mean = options.mean, .deviation = options.deviation}});
  }
  if (const Images* const other = options.like) {
    if (fields()[0].shape[0] != other->fields()[0].shape[0])
      throw DataError("{}: images are {}, but those of {}, which the model was trained on, are {}", name(),
                      to_string(fields()[0].shape), other->name(), to_string(other->fields()[0].shape));
    for (const Field& field : fields())
      if (has_field(*other, field.name)) other->meaning(field.name).merge(field.name, meaning(field.name));
    normalize("x", other->meaning("x").by);
  }
}

Images::Images(const Request& request)
    : Images(request.files, {.labels = request.targets && request.labels,
                             .memory_limit_bytes = request.memory_limit_bytes}) {
  if (request.classifies && request.classes > 0 && has_field(*this, "y")) check_labels("y", request.classes);
}

bool Images::fits(const Request& request) {
  if (!request.fields.empty() || request.normalizes || request.takes_series) return false;
  const hdf5::File file = hdf5::File::open(request.files.front());
  // A model that names its input x takes images, unless the file has another /x and /y.
  if (!file.exists("x") || !file.exists("y")) return request.takes_images;
  for (const char* const name : {"x", "y"})
    if (const hdf5::ObjectKind kind = file.kind(name);
        kind != hdf5::ObjectKind::dataset && kind != hdf5::ObjectKind::unreachable)
      return false;
  const hdf5::Dataset x = file.open_dataset("x"), y = file.open_dataset("y");
  const std::size_t rank = x.shape().size();
  if (!is_integers(y) || file.exists("x_offsets")) return false;
  if (x.dtype() && (rank == 4 || rank == 2) && y.shape().size() == 1) return true;
  const bool scaled = x.dtype() == DType::uint8 || x.has_attribute("mean") || x.has_attribute("std");
  if (!scaled || !request.classifies) return false;
  constexpr const char* otherwise = "data.format = arrays takes both as they are stored";
  if (rank == 3 && y.shape().size() == 1)
    throw DataError("{}: /x is {} {}: images are [N, C, H, W], so store x[:, None]; {}", file.file_path(),
                    x.type_name(), shape_text(x), otherwise);
  if (y.shape().size() == 2 && y.shape()[1] == 1)
    throw DataError("{}: /y is {} {}: labels of images are [N], so store y[:, 0]; {}", file.file_path(),
                    y.type_name(), shape_text(y), otherwise);
  return false;
}

}  // namespace lockstep::data
