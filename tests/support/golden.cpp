#include "support/golden.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace lockstep::test {
namespace {

double element(const Tensor& tensor, std::int64_t index) {
  switch (tensor.dtype()) {
    case DType::float32:
      return tensor.data<float>()[index];
    case DType::float64:
      return tensor.data<double>()[index];
    default:
      return static_cast<double>(tensor.data<std::int64_t>()[index]);
  }
}

}  // namespace

std::filesystem::path golden_directory() {
  if (const char* const given = std::getenv("LOCKSTEP_GOLDEN")) return given;
  const char* const source = std::getenv("LOCKSTEP_SOURCE_DIR");
  if (!source) throw UsageError("set LOCKSTEP_GOLDEN to the directory of the golden files");
  return std::filesystem::path(source) / "tests" / "golden";
}

std::vector<std::filesystem::path> golden_files(std::string_view prefix, std::string_view suffix) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(golden_directory())) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(suffix)) files.push_back(entry.path());
  }
  if (files.empty()) throw DataError("{} holds no {}*{}", golden_directory().string(), prefix, suffix);
  std::sort(files.begin(), files.end());
  return files;
}

GoldenCase::GoldenCase(std::shared_ptr<hdf5::File> file, const std::string& name)
    : file_(std::move(file)),
      group_("/" + name),
      name_(std::filesystem::path(file_->file_path()).filename().string() + ": " + name),
      what_(nlohmann::json::parse(file_->open_group(group_).text_attribute("case"))) {}

std::vector<std::string> GoldenCase::names(const std::string& path) const {
  std::vector<std::string> names;
  if (!has(path)) return names;
  for (const hdf5::Link& link : file_->open_group(group_ + "/" + path).links(hdf5::Group::Order::name))
    names.push_back(link.name);
  return names;
}

Tensor GoldenCase::tensor(const std::string& path) const {
  const hdf5::Dataset dataset = file_->open_dataset(group_ + "/" + path);
  const Shape shape{std::span<const std::int64_t>(dataset.shape())};
  const auto count = static_cast<std::size_t>(dataset.numel());
  const auto read = [&]<class E>(E) {
    const Tensor tensor = Tensor::empty(shape, dtype_of<E>);
    dataset.read(std::span(tensor.data<E>(), count));
    return tensor;
  };
  if (dataset.dtype() == DType::int64) return read(std::int64_t{});
  if (dataset.dtype() == DType::float64) return read(double{});
  return read(float{});
}

void for_each_golden_case(std::string_view prefix, const std::function<void(const GoldenCase&)>& check,
                          const std::string& group) {
  for (const std::filesystem::path& path : golden_files(prefix, ".h5")) {
    const auto file = std::make_shared<hdf5::File>(hdf5::File::open(path.string()));
    const std::vector<hdf5::Link> cases = group.empty()
                                              ? file->links(hdf5::Group::Order::name)
                                              : file->open_group("/" + group).links(hdf5::Group::Order::name);
    for (const hdf5::Link& link : cases)
      check(GoldenCase(file, group.empty() ? link.name : group + "/" + link.name));
  }
}

std::string mismatch(const GoldenCase& golden, std::string_view tensor_name, const Tensor& found,
                     const Tensor& wanted, const std::function<double(std::int64_t)>& allowed) {
  if (!found) return fmt::format("{}: {} is missing", golden.name(), tensor_name);
  if (!(found.shape() == wanted.shape()))
    return fmt::format("{}: {} has shape {}, not {}", golden.name(), tensor_name, to_string(found.shape()),
                       to_string(wanted.shape()));
  if (found.channel_block() != 1) return fmt::format("{}: {} is not plain", golden.name(), tensor_name);
  const std::int64_t count = wanted.numel();
  std::int64_t off = 0, worst = 0;
  double worst_excess = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    const double distance = std::abs(element(found, i) - element(wanted, i)), most = allowed(i);
    const bool finite = std::isfinite(distance);
    if (finite && distance <= most) continue;
    ++off;
    const double excess = finite ? distance - most : HUGE_VAL;
    if (excess <= worst_excess) continue;
    worst_excess = excess;
    worst = i;
  }
  if (off == 0) return {};
  return fmt::format("{}: {} {}: {} of {} elements are off, worst at {}: {:.9g}, not {:.9g} within {:.3g}",
                     golden.name(), tensor_name, to_string(wanted.shape()), off, count, worst,
                     element(found, worst), element(wanted, worst), allowed(worst));
}

std::string mismatch(const GoldenCase& golden, std::string_view tensor_name, const Tensor& found,
                     const Tensor& wanted, const Tolerance& tolerance) {
  double largest = tolerance.smallest_largest;
  for (std::int64_t i = 0; i < wanted.numel(); ++i) largest = std::max(largest, std::abs(element(wanted, i)));
  return mismatch(golden, tensor_name, found, wanted, [&](std::int64_t i) {
    return tolerance.absolute + tolerance.of_largest * largest +
           tolerance.relative * std::abs(element(wanted, i));
  });
}

std::string mismatch(const GoldenCase& golden, const std::string& path, const Tensor& found,
                     const Tolerance& tolerance) {
  return mismatch(golden, path, found, golden.tensor(path), tolerance);
}

}  // namespace lockstep::test
