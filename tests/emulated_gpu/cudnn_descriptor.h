// Descriptors of cuDNN's backend API: attributes by name, fixed once finalized.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "emulated_gpu/cudnn_status.h"

namespace lockstep::emulated_gpu {

struct Descriptor;
struct OperationGraph;

struct Attribute {
  std::int64_t count = 0;
  std::vector<char> bytes;
  std::vector<std::shared_ptr<const Descriptor>> descriptors;  ///< instead of bytes
};

struct Descriptor {
  cudnnBackendDescriptorType_t type{};
  bool finalized = false;
  std::map<cudnnBackendAttributeName_t, Attribute> attributes;
  std::shared_ptr<const OperationGraph> graph;  ///< of a finalized graph, and of what is made from it

  bool has(cudnnBackendAttributeName_t name) const { return attributes.count(name) != 0; }
  /// Of attributes that are set.
  const Descriptor& descriptor(cudnnBackendAttributeName_t name) const {
    return *attributes.at(name).descriptors.at(0);
  }
  template <class Value>
  std::vector<Value> values(cudnnBackendAttributeName_t name) const {
    const Attribute& attribute = attributes.at(name);
    std::vector<Value> values;
    for (std::size_t i = 0; i < static_cast<std::size_t>(attribute.count); ++i)
      values.push_back(stored_at<Value>(attribute.bytes.data(), i));
    return values;
  }
  template <class Value>
  Value value(cudnnBackendAttributeName_t name) const {
    return values<Value>(name).at(0);
  }
  template <class Value>
  Value value_or(cudnnBackendAttributeName_t name, Value otherwise) const {
    return has(name) ? value<Value>(name) : otherwise;
  }

  void put(cudnnBackendAttributeName_t name, std::vector<std::shared_ptr<const Descriptor>> descriptors) {
    attributes[name] = {static_cast<std::int64_t>(descriptors.size()), {}, std::move(descriptors)};
  }
  template <class Value>
  void put(cudnnBackendAttributeName_t name, const std::vector<Value>& values) {
    const char* const first = reinterpret_cast<const char*>(values.data());
    attributes[name] = {
        static_cast<std::int64_t>(values.size()), {first, first + values.size() * sizeof(Value)}, {}};
  }
};

/// What finalizing a descriptor checks and makes, once all that it needs is set.
cudnnStatus_t complete(Descriptor& descriptor);

/// The descriptor behind cuDNN's pointer.
const Descriptor& described(cudnnBackendDescriptor_t descriptor);

}  // namespace lockstep::emulated_gpu
