// A data set of the fields x and y, an integer, for tests that make one up.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::test {

class Pairs : public data::Dataset {
 public:
  Pairs(std::string name, std::int64_t size, Shape x, std::int64_t classes)
      : name_(std::move(name)),
        size_(size),
        fields_{{.name = "x", .shape = x}, {.name = "y", .dtype = DType::int64, .classes = classes}} {}
  std::int64_t size() const override { return size_; }
  const std::vector<data::Field>& fields() const override { return fields_; }
  std::string name() const override { return name_; }
  void read(std::span<const std::int64_t> samples, std::span<const Tensor> into) const override {
    check_read(samples, into);
    read_pairs(samples, into[0], into[1]);
  }

 protected:
  virtual void read_pairs(std::span<const std::int64_t> samples, const Tensor& x, const Tensor& y) const = 0;

 private:
  std::string name_;
  std::int64_t size_;
  std::vector<data::Field> fields_;
};

}  // namespace lockstep::test
