// NumPy's .npy files: each is a field, named as the file.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <regex>

#include "base/files.h"
#include "lockstep/base/error.h"
#include "lockstep/data/dataset.h"
#include "tensor/element_types.h"

namespace lockstep::data {
namespace {

/// A file, whose header (numpy.lib.format, versions 1 to 3) has been read.
struct Array {
  OpenFile file;
  DType dtype;
  std::vector<std::int64_t> extents;
  std::uint64_t offset;  // of the elements
};

Array open(const std::string& path) {
  OpenFile file(path, OpenFile::Mode::read);
  std::array<char, 12> start{};
  if (file.size() < start.size()) throw DataError("{}: is not a .npy file", path);
  file.read_at(0, start.data(), start.size());
  if (std::string_view(start.data(), 6) != "\x93NUMPY") throw DataError("{}: is not a .npy file", path);
  const bool is_long = start[6] > 1;
  std::uint32_t bytes = 0;
  std::memcpy(&bytes, &start[8], is_long ? 4 : 2);
  const std::uint64_t begin = is_long ? 12 : 10;
  if (bytes > file.size() - begin) throw DataError("{}: is cut off", path);
  std::string header(bytes, '\0');
  file.read_at(begin, header.data(), bytes);
  static const std::map<std::string, DType> types{
      {"<f8", DType::float64}, {"<f4", DType::float32}, {"<i8", DType::int64}, {"<i4", DType::int32},
      {"<i2", DType::int16},   {"|i1", DType::int8},    {"|u1", DType::uint8}, {"|b1", DType::uint8},
      {"<u2", DType::uint16},  {"<u4", DType::uint32}};
  std::smatch type, shape;
  const std::regex descr("'descr': *'([^']*)'"), extents("'shape': *\\(([0-9, ]*)\\)");
  if (!std::regex_search(header, type, descr) || !types.contains(type[1]) ||
      !std::regex_search(header, shape, extents) || header.find("'fortran_order': False") == header.npos)
    throw DataError("{}: its header is {}; numbers in C order are read", path, header);
  Array array{.file = std::move(file), .dtype = types.at(type[1]), .extents = {}, .offset = begin + bytes};
  const std::string list = shape[1];
  const std::regex number("[0-9]+");
  for (auto at = std::sregex_iterator(list.begin(), list.end(), number); at != std::sregex_iterator(); ++at)
    array.extents.push_back(std::stoll(at->str()));
  std::uint64_t size = bytes_of(array.dtype);
  for (const std::int64_t extent : array.extents) size *= static_cast<std::uint64_t>(extent);
  if (array.extents.empty() || size == 0 || array.offset + size > array.file.size())
    throw DataError("{}: has no rows, or fewer bytes than its shape says", path);
  return array;
}

class Npy final : public Dataset {
 public:
  explicit Npy(const Request& request) {
    for (const std::string& path : request.files) {
      arrays_.push_back(open(path));
      const Array& array = arrays_.back();
      if (array.extents[0] != arrays_[0].extents[0])
        throw DataError("{}: has {} rows, but {} has {}", path, array.extents[0], request.files[0], size());
      const std::string name = file_name_of(path);
      fields_.push_back({.name = name.substr(0, name.rfind('.')),
                         .dtype = is_floating(array.dtype) ? DType::float32 : DType::int64,
                         .shape = Shape(std::span<const std::int64_t>(array.extents).subspan(1))});
    }
  }
  static bool fits(const Request& request) {
    return !request.files.empty() &&
           std::ranges::all_of(request.files, [](const std::string& path) { return path.ends_with(".npy"); });
  }

  std::int64_t size() const override { return arrays_[0].extents[0]; }
  const std::vector<Field>& fields() const override { return fields_; }
  std::string name() const override { return arrays_[0].file.path(); }
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    check_read(samples, into);
    for (std::size_t f = 0; f < into.size(); ++f) {
      const Array& array = arrays_[f];
      const auto elements = static_cast<std::size_t>(fields_[f].shape.numel());
      std::vector<std::byte> row(elements * bytes_of(array.dtype));
      for (std::size_t i = 0; i < samples.size(); ++i) {
        array.file.read_at(array.offset + static_cast<std::uint64_t>(samples[i]) * row.size(), row.data(),
                           row.size());
        with_element_type(array.dtype, [&]<class T>() {
          if constexpr (std::is_arithmetic_v<T>) {
            for (std::size_t e = 0; e < elements; ++e) {
              T value;
              std::memcpy(&value, &row[e * sizeof(T)], sizeof(T));
              if (std::is_floating_point_v<T>)
                into[f].data<float>()[i * elements + e] = static_cast<float>(value);
              else
                into[f].data<std::int64_t>()[i * elements + e] = static_cast<std::int64_t>(value);
            }
          }
        });
      }
    }
  }

 private:
  std::vector<Array> arrays_;
  std::vector<Field> fields_;
};

}  // namespace

void add_npy(Registry& registry) { registry.add<Npy>("npy"); }

}  // namespace lockstep::data
