// Images from CIFAR's binary version: https://www.cs.toronto.edu/~kriz/cifar.html.
#include "data/image_table.h"
#include "data/input.h"
#include "data/whole_file.h"
#include "lockstep/base/error.h"
#include "lockstep/data/prepare.h"

namespace lockstep::data {
namespace {

constexpr std::size_t image_bytes = 3 * 32 * 32;

/// 1 or 2, whichever makes the file a whole number of records.
int label_bytes_of(const std::string& path, std::size_t bytes) {
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
  ImageTable table;
  int label_bytes = options.label_bytes;
  for (const std::string& path : inputs) {
    Input input(path);
    const std::vector<std::uint8_t> bytes = read_rest(input);
    if (bytes.empty()) throw DataError("{}: the file is empty", path);
    if (label_bytes == 0) label_bytes = label_bytes_of(path, bytes.size());
    const auto labels = static_cast<std::size_t>(label_bytes), record = labels + image_bytes;
    if (bytes.size() % record != 0) {
      throw DataError("{}: {} bytes are no whole number of records of {} bytes", path, bytes.size(), record);
    }
    if (options.coarse && label_bytes == 1) throw UsageError("{}: CIFAR-10 has no coarse labels", path);
    for (std::size_t at = 0; at < bytes.size(); at += record) {
      table.add_label(bytes[at + (options.coarse ? 0 : labels - 1)]);
      table.add_bytes(std::span(bytes).subspan(at + labels, image_bytes));
    }
  }
  return table.write(output, {3, 32, 32}, options.statistics);
}

}  // namespace lockstep::data
