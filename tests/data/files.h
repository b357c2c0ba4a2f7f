// Small data files for the tests of this module.
#pragma once

#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "data/prepare.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/data/dataset.h"
#include "lockstep/data/tokenizer.h"
#include "lockstep/hdf5/file.h"
#include "support/mentions.h"
#include "support/temporary_folder.h"

namespace lockstep::test {

/// Text as bytes, on one rank.
inline data::Summary prepare_text(const std::vector<std::string>& inputs, const data::Output& output) {
  data::Tokenizers registry;
  add_built_in(registry);
  return data::prepare_text(inputs, output, {}, registry, *comm::make_self_communicator());
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
class Counting : public data::Dataset {
 public:
  explicit Counting(std::int64_t size, std::string name = "counting")
      : size_(size),
        name_(std::move(name)),
        fields_{{.name = "x", .shape = {2}}, {.name = "y", .dtype = DType::int64, .classes = size}} {}
  std::int64_t size() const override { return size_; }
  const std::vector<data::Field>& fields() const override { return fields_; }
  std::string name() const override { return name_; }
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    check_read(samples, into);
    for (std::size_t i = 0; i < samples.size(); ++i) {
      into[0].data<float>()[2 * i] = static_cast<float>(samples[i]);
      into[0].data<float>()[2 * i + 1] = -static_cast<float>(samples[i]);
      into[1].data<std::int64_t>()[i] = samples[i];
    }
  }

 private:
  std::int64_t size_;
  std::string name_;
  std::vector<data::Field> fields_;
};

/// Some samples of a dataset in fresh tensors, by field.
inline Batch read_samples(const data::Dataset& dataset, const std::vector<std::int64_t>& samples) {
  std::vector<Tensor> tensors;
  for (const data::Field& field : dataset.fields())
    tensors.push_back(Tensor::zeros(data::batch_shape(std::ssize(samples), field.shape), field.dtype));
  dataset.read(samples, tensors);
  return data::batch_of(0, dataset.fields(), tensors);
}

/// Of a dataset with the fields x and y.
struct Samples {
  Samples(const data::Dataset& dataset, const std::vector<std::int64_t>& samples)
      : x(read_samples(dataset, samples)["x"]), y(read_samples(dataset, samples)["y"]) {}
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
