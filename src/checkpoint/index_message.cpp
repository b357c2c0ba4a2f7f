#include "checkpoint/index_message.h"

#include <nlohmann/json.hpp>

namespace lockstep::checkpoint {
namespace {

using nlohmann::json;

json to_message(const AttributeValue& value) {
  return std::visit([](const auto& held) { return json(held); }, value);
}

AttributeValue attribute_of(const json& message) {
  if (message.is_string()) return message.get<std::string>();
  if (message.is_number_float()) return message.get<double>();
  return message.get<std::int64_t>();
}

json to_message(const FileIndex& index) {
  json groups = json::array(), tensors = json::array();
  for (const GroupEntry& group : index.groups) {
    json attributes = json::array();
    for (const auto& [name, value] : group.attributes)
      attributes.push_back(json::array({name, to_message(value)}));
    groups.push_back(json::array({group.path, std::move(attributes)}));
  }
  for (const TensorEntry& tensor : index.tensors) {
    const auto extents = tensor.shape.extents();
    tensors.push_back({tensor.group, tensor.name, static_cast<int>(tensor.dtype),
                       std::vector<std::int64_t>(extents.begin(), extents.end()), tensor.offset, tensor.bytes,
                       tensor.digest});
  }
  const Position& p = index.position;
  return json::array({index.path,
                      index.file_bytes,
                      index.version,
                      {p.step, p.epoch, p.samples, p.shards, p.seed},
                      index.world_size,
                      index.created,
                      index.digest,
                      index.config,
                      index.provenance,
                      std::move(groups),
                      std::move(tensors)});
}

FileIndex index_of(const json& message) {
  FileIndex index;
  message[0].get_to(index.path);
  message[1].get_to(index.file_bytes);
  message[2].get_to(index.version);
  const json& position = message[3];
  index.position = {position[0].get<std::int64_t>(), position[1].get<std::int64_t>(),
                    position[2].get<std::int64_t>(), position[3].get<std::int64_t>(),
                    position[4].get<std::uint64_t>()};
  message[4].get_to(index.world_size);
  message[5].get_to(index.created);
  message[6].get_to(index.digest);
  message[7].get_to(index.config);
  message[8].get_to(index.provenance);
  for (const json& group : message[9]) {
    GroupEntry& entry = index.groups.emplace_back();
    group[0].get_to(entry.path);
    for (const json& attribute : group[1]) {
      entry.attributes.emplace_back(attribute[0].get<std::string>(), attribute_of(attribute[1]));
    }
  }
  for (const json& tensor : message[10]) {
    TensorEntry& entry = index.tensors.emplace_back();
    tensor[0].get_to(entry.group);
    tensor[1].get_to(entry.name);
    entry.dtype = static_cast<DType>(tensor[2].get<int>());
    const auto extents = tensor[3].get<std::vector<std::int64_t>>();
    entry.shape = Shape(std::span<const std::int64_t>(extents));
    tensor[4].get_to(entry.offset);
    tensor[5].get_to(entry.bytes);
    tensor[6].get_to(entry.digest);
  }
  return index;
}

}  // namespace

void broadcast(FileIndex& index, comm::Communicator& communicator) {
  if (communicator.size() == 1) return;
  std::vector<std::uint8_t> bytes;
  if (communicator.rank() == 0) bytes = json::to_cbor(to_message(index));
  std::uint64_t count = bytes.size();
  communicator.broadcast(&count, sizeof count, 0);
  bytes.resize(count);
  communicator.broadcast(bytes.data(), count, 0);
  if (communicator.rank() != 0) index = index_of(json::from_cbor(bytes));
}

}  // namespace lockstep::checkpoint
