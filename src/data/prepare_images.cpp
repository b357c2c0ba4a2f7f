// Reads images in the IDX format of MNIST (http://yann.lecun.com/exdb/mnist, "The IDX file format") and in
// the binary version of CIFAR (https://www.cs.toronto.edu/~kriz/cifar.html).
#include <fmt/ranges.h>

#include <array>
#include <span>
#include <vector>

#include "data/array_writer.h"
#include "data/input.h"
#include "data/prepare.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

struct IdxFile {
  std::string path;
  std::vector<std::int64_t> extents;
  std::int64_t values = 1;
};

/// Reads a header: two zero bytes, the type (8: unsigned byte), the rank, then each extent as big-endian
/// uint32.
IdxFile read_header(Input& input) {
  const std::string& path = input.path();
  std::array<std::uint8_t, 4> word{};
  const auto next_word = [&] {
    if (input.read(std::as_writable_bytes(std::span(word))) != word.size()) {
      throw DataError("{}: ends within its header; not an IDX file", path);
    }
  };
  next_word();
  if (word[0] != 0 || word[1] != 0 || word[2] != 8 || (word[3] != 1 && word[3] != 3 && word[3] != 4)) {
    throw DataError(
        "{}: starts with bytes {:02x}: not an IDX file of unsigned bytes with 1, 3 or 4 dimensions", path,
        fmt::join(word, " "));
  }
  IdxFile file{path, {}};
  const int rank = word[3];
  for (int d = 0; d < rank; ++d) {
    next_word();
    const std::int64_t extent = (std::int64_t{word[0]} << 24) | (word[1] << 16) | (word[2] << 8) | word[3];
    if (__builtin_mul_overflow(file.values, extent, &file.values))
      throw DataError("{}: the header is malformed: it claims too many values", path);
    file.extents.push_back(extent);
  }
  return file;
}

/// Reads the header. DataError unless the file holds exactly the values that its header claims.
IdxFile check_idx(const std::string& path) {
  Input input(path);
  IdxFile file = read_header(input);
  const std::int64_t values = count_rest(input);
  if (values != file.values) {
    throw DataError("{}: holds {} values, but its header claims {} ({})", path, values, file.values,
                    fmt::join(file.extents, " x "));
  }
  return file;
}

/// Calls use(row) for each row of `row_bytes` values of a file.
template <class Use>
void for_rows(const IdxFile& file, std::size_t row_bytes, const Use& use) {
  Input input(file.path);
  read_header(input);
  std::vector<std::uint8_t> row(row_bytes);
  while (input.read(std::as_writable_bytes(std::span(row))) == row_bytes)
    use(std::span<const std::uint8_t>(row));
}

Shape image_shape(const IdxFile& images) {
  const auto& n = images.extents;
  return n.size() == 3 ? Shape{1, n[1], n[2]} : Shape{n[1], n[2], n[3]};
}

/// /x, array 0, and labels /y, array 1, which fill(writer) adds.
template <class Fill>
Summary write_images(const Output& output, std::int64_t images, const Shape& image,
                     const std::string& statistics, const Fill& fill) {
  if (images == 0) throw DataError("{}: not written: the input has no images", output.path);
  ArrayWriter writer(output, {{.name = "x",
                               .rows = images,
                               .dtype = DType::uint8,
                               .row = image,
                               .normalizes = true,
                               .by = statistics_of(statistics, "x", image[0])},
                              {.name = "y", .dtype = DType::int64}});
  fill(writer);
  writer.finish();
  writer.publish();
  return {.samples = images,
          .image = image,
          .element_type = "uint8",
          .classes = writer.largest(1) + 1,
          .one_label = writer.smallest(1) == writer.largest(1)};
}

}  // namespace

Summary prepare_idx(std::span<const std::string> inputs, const Output& output,
                    const std::string& statistics) {
  if (inputs.empty()) throw UsageError("prepare idx: the list of files is empty");
  check_output(inputs, output, statistics);
  Shape image;
  std::int64_t count = 0;
  std::vector<IdxFile> images, labels;
  for (const std::string& path : inputs) {
    IdxFile file = check_idx(path);
    (file.extents.size() == 1 ? labels : images).push_back(std::move(file));
  }
  if (images.size() != labels.size()) {
    throw DataError(
        "{} IDX files of images but {} of labels (first {}): each file of images needs a file of labels",
        images.size(), labels.size(), inputs[0]);
  }
  for (std::size_t i = 0; i < images.size(); ++i) {
    const Shape shape = image_shape(images[i]);
    if (i == 0) image = shape;
    if (!(shape == image)) {
      throw DataError("{}: images have shape {}, but those of {} have {}", images[i].path, to_string(shape),
                      images[0].path, to_string(image));
    }
    if (images[i].extents[0] != labels[i].extents[0]) {
      throw DataError("{}: has {} images, but {} has {} labels", images[i].path, images[i].extents[0],
                      labels[i].path, labels[i].extents[0]);
    }
    count += images[i].extents[0];
  }
  if (image.numel() == 0)
    throw DataError("{}: images of shape {} have no pixels", images[0].path, to_string(image));
  return write_images(output, count, image, statistics, [&](ArrayWriter& writer) {
    for (const IdxFile& file : images) {
      for_rows(file, static_cast<std::size_t>(image.numel()),
               [&](std::span<const std::uint8_t> values) { writer.add(0, values); });
    }
    for (const IdxFile& file : labels)
      for_rows(file, 1, [&](std::span<const std::uint8_t> label) { writer.add(1, label); });
  });
}

namespace {

constexpr std::int64_t image_bytes = 3 * 32 * 32;

/// 1 or 2 label bytes: the number for which the size of the file is a multiple of the record size.
int label_bytes_of(const std::string& path, std::int64_t bytes) {
  const bool one = bytes % (image_bytes + 1) == 0, two = bytes % (image_bytes + 2) == 0;
  if (one && two)
    throw DataError("{}: {} bytes fit records with 1 and with 2 label bytes; set label_bytes", path, bytes);
  if (!one && !two) {
    throw DataError("{}: {} bytes are not a multiple of the size of a CIFAR record ({} or {} bytes)", path,
                    bytes, image_bytes + 1, image_bytes + 2);
  }
  return one ? 1 : 2;
}

}  // namespace

Summary prepare_cifar(std::span<const std::string> inputs, const Output& output,
                      const CifarOptions& options) {
  if (inputs.empty()) throw UsageError("prepare cifar: the list of files is empty");
  if (options.label_bytes < 0 || options.label_bytes > 2) {
    throw UsageError("label_bytes = {} is invalid; CIFAR-10 has 1, CIFAR-100 has 2", options.label_bytes);
  }
  check_output(inputs, output, options.statistics);
  std::int64_t count = 0;
  int label_bytes = options.label_bytes;
  for (const std::string& path : inputs) {
    Input input(path);
    const std::int64_t bytes = count_rest(input);
    if (bytes == 0) throw DataError("{}: the file is empty", path);
    if (label_bytes == 0) label_bytes = label_bytes_of(path, bytes);
    const std::int64_t record = label_bytes + image_bytes;
    if (bytes % record != 0) {
      throw DataError("{}: {} bytes are not a multiple of the record size, {} bytes", path, bytes, record);
    }
    if (options.coarse && label_bytes == 1)
      throw UsageError("{}: CIFAR-10 has no coarse labels; omit --coarse", path);
    count += bytes / record;
  }
  return write_images(output, count, {3, 32, 32}, options.statistics, [&](ArrayWriter& writer) {
    const auto labels = static_cast<std::size_t>(label_bytes);
    std::vector<std::uint8_t> record(labels + image_bytes);
    for (const std::string& path : inputs) {
      Input input(path);
      while (input.read(std::as_writable_bytes(std::span(record))) == record.size()) {
        writer.add(1, record[options.coarse ? 0 : labels - 1]);
        writer.add(0, std::span<const std::uint8_t>(record).subspan(labels));
      }
    }
  });
}

}  // namespace lockstep::data
