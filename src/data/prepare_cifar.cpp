// Images from CIFAR's binary version: https://www.cs.toronto.edu/~kriz/cifar.html.
#include <span>

#include "data/image_writer.h"
#include "data/input.h"
#include "data/prepare.h"
#include "lockstep/base/error.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t image_bytes = 3 * 32 * 32;

/// 1 or 2, whichever makes the file a whole number of records.
int label_bytes_of(const std::string& path, std::int64_t bytes) {
  const bool one = bytes % (image_bytes + 1) == 0, two = bytes % (image_bytes + 2) == 0;
  if (one && two)
    throw DataError("{}: {} bytes fit records of 1 and of 2 label bytes: say which", path, bytes);
  if (!one && !two) {
    throw DataError("{}: {} bytes are no whole number of CIFAR records ({} or {} bytes)", path, bytes,
                    image_bytes + 1, image_bytes + 2);
  }
  return one ? 1 : 2;
}

}  // namespace

Prepared prepare_cifar(std::span<const std::string> inputs, const Output& output,
                       const CifarOptions& options) {
  if (inputs.empty()) throw UsageError("no CIFAR files were named");
  if (options.label_bytes < 0 || options.label_bytes > 2) {
    throw UsageError("{} label bytes were asked: CIFAR-10 has 1, CIFAR-100 has 2", options.label_bytes);
  }
  check_output(inputs, output, options.statistics.from);
  ImageFile contents{.image = {3, 32, 32}, .bytes = true};
  int label_bytes = options.label_bytes;
  for (const std::string& path : inputs) {
    Input input(path);
    const std::int64_t bytes = count_rest(input);
    if (bytes == 0) throw DataError("{}: the file is empty", path);
    if (label_bytes == 0) label_bytes = label_bytes_of(path, bytes);
    const std::int64_t record = label_bytes + image_bytes;
    if (bytes % record != 0) {
      throw DataError("{}: {} bytes are no whole number of records of {} bytes", path, bytes, record);
    }
    if (options.coarse && label_bytes == 1) throw UsageError("{}: CIFAR-10 has no coarse labels", path);
    contents.images += bytes / record;
  }
  return write_images(output, contents, options.statistics, [&](ImageWriter& writer) {
    const auto labels = static_cast<std::size_t>(label_bytes);
    std::vector<std::uint8_t> record(labels + image_bytes);
    for (const std::string& path : inputs) {
      Input input(path);
      while (input.read(std::as_writable_bytes(std::span(record))) == record.size()) {
        writer.add_label(record[options.coarse ? 0 : labels - 1]);
        writer.add_image(std::span<const std::uint8_t>(record).subspan(labels));
      }
    }
  });
}

}  // namespace lockstep::data
