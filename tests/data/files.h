// Small data files for the tests of this room.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/hdf5/file.h"
#include "support/temporary_folder.h"

namespace lockstep::test {

/// True if the error's text has `text` in it.
inline auto mentions(std::string text) {
  return [text](const std::exception& error) {
    return std::string(error.what()).find(text) != std::string::npos;
  };
}

/// Images [n, 2, 3, 4] of bytes: element e of the file is (7 e + salt) mod 256; label i is i mod 5.
inline std::vector<std::uint8_t> image_bytes(std::int64_t images, int salt) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(images) * 24);
  for (std::size_t e = 0; e < bytes.size(); ++e)
    bytes[e] = static_cast<std::uint8_t>(7 * e + static_cast<std::size_t>(salt));
  return bytes;
}

inline std::string make_images(const TemporaryFolder& folder, const std::string& name, std::int64_t images,
                               int salt = 0, const std::vector<double>& mean = {},
                               const std::vector<double>& deviation = {}) {
  hdf5::File file = hdf5::File::create(folder.file(name));
  hdf5::Dataset x = file.create_dataset("x", DType::uint8, {images, 2, 3, 4});
  x.write(std::span<const std::uint8_t>(image_bytes(images, salt)));
  if (!mean.empty()) x.set_attribute("mean", mean);
  if (!deviation.empty()) x.set_attribute("std", deviation);
  std::vector<std::int64_t> labels(static_cast<std::size_t>(images));
  for (std::size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<std::int64_t>(i % 5);
  file.create_dataset("y", DType::int64, {images}).write(std::span<const std::int64_t>(labels));
  file.close();
  return folder.file(name);
}

/// Token i is (salt + i) mod 100, of a vocabulary of 100.
inline std::string make_text(const TemporaryFolder& folder, const std::string& name, std::int64_t tokens,
                             int salt = 0) {
  hdf5::File file = hdf5::File::create(folder.file(name));
  std::vector<std::uint16_t> values(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<std::uint16_t>((static_cast<std::size_t>(salt) + i) % 100);
  hdf5::Dataset data = file.create_dataset("tokens", DType::uint16, {tokens});
  data.write(std::span<const std::uint16_t>(values));
  data.set_attribute("vocabulary", 100);
  data.set_attribute("tokenizer", "counting");
  file.close();
  return folder.file(name);
}

/// A dataset without a file: x of sample i is [i, -i], y is i.
class Counting final : public data::Dataset {
 public:
  explicit Counting(std::int64_t size) : size_(size) {}
  std::int64_t size() const override { return size_; }
  Shape x_shape() const override { return {2}; }
  DType x_dtype() const override { return DType::float32; }
  Shape y_shape() const override { return {}; }
  std::int64_t classes() const override { return size_; }
  std::string name() const override { return "counting"; }
  void read(std::span<const std::int64_t> samples, const Tensor& x, const Tensor& y) const override {
    check_read(samples, x, y);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      x.data<float>()[2 * i] = static_cast<float>(samples[i]);
      x.data<float>()[2 * i + 1] = -static_cast<float>(samples[i]);
      y.data<std::int64_t>()[i] = samples[i];
    }
  }

 private:
  std::int64_t size_;
};

/// Some samples of a dataset in fresh tensors.
struct Samples {
  Samples(const data::Dataset& dataset, const std::vector<std::int64_t>& samples)
      : x(Tensor::zeros(data::batch_shape(std::ssize(samples), dataset.x_shape()), dataset.x_dtype())),
        y(Tensor::zeros(data::batch_shape(std::ssize(samples), dataset.y_shape()), DType::int64)) {
    dataset.read(samples, x, y);
  }
  Tensor x, y;
};

template <class T>
std::vector<T> values_of(const Tensor& tensor) {
  return {tensor.data<T>(), tensor.data<T>() + tensor.numel()};
}

inline std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(end - begin));
  std::iota(numbers.begin(), numbers.end(), begin);
  return numbers;
}

}  // namespace lockstep::test
