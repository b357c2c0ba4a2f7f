#include "checkpoint/weights/pytorch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <unordered_set>
#include <utility>

#include "base/text.h"
#include "checkpoint/weights/element_types.h"
#include "checkpoint/weights/pickle.h"
#include "checkpoint/weights/pytorch_names.h"
#include "lockstep/base/error.h"

namespace lockstep::checkpoint {
namespace {

using Ref = Pickle::Ref;
using Use = PickleName::Use;

constexpr std::size_t max_key_bytes = 100;

/// The values of a pickle as tensors in the storages of an archive.
class Interpreter {
 public:
  Interpreter(const Pickle& pickle, std::span<const PickleName> vocabulary, const ZipFile& zip,
              const std::string& root)
      : pickle_(pickle), vocabulary_(vocabulary), zip_(zip), root_(root) {}

  /// Items of a dict, an OrderedDict or a Counter; null for other values.
  const Pickle::Items* items_of(Ref ref) const {
    if (const auto* const mapping = pickle_.get<Pickle::Mapping>(ref)) return &mapping->items;
    const auto* const object = pickle_.get<Pickle::Object>(ref);
    if (!object) return nullptr;
    if (name_of(*object) == "collections.OrderedDict") return &object->items;
    if (name_of(*object) != "collections.Counter" || arguments_of(*object).size() != 1) return nullptr;
    const auto* const counts = pickle_.get<Pickle::Mapping>(arguments_of(*object)[0]);
    return counts ? &counts->items : nullptr;
  }

  const std::string_view* text_of(Ref ref) const { return pickle_.get<std::string_view>(ref); }
  /// A key of a mapping as Python prints it, if it is a text or a number.
  std::string key_of(Ref ref) const {
    if (const std::string_view* const text = text_of(ref))
      return std::string(text->substr(0, max_key_bytes + 1));
    if (const auto* const integer = pickle_.get<std::int64_t>(ref)) return std::to_string(*integer);
    const auto* const number = pickle_.get<double>(ref);
    const std::string text = number ? fmt::format("{}", *number) : "?";
    return number && text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
  }
  bool is_inert(Ref ref) const {
    const auto* const object = pickle_.get<Pickle::Object>(ref);
    return object && vocabulary_[object->name].use == Use::inert;
  }
  /// items_of(), or the attributes of an object.
  const Pickle::Items* named_in(Ref ref) const {
    return items_of(is_inert(ref) ? pickle_.get<Pickle::Object>(ref)->attributes : ref);
  }
  struct Inner {
    std::string key;
    Ref value;
    bool by_name;  ///< under a text or a float in a mapping
  };
  /// Value number i in named_in(), a list or a tuple; none after the last one.
  std::optional<Inner> inner_at(Ref ref, std::size_t i) const {
    const auto* const list = pickle_.get<Pickle::List>(ref);
    const auto* const tuple = pickle_.get<Pickle::Tuple>(ref);
    if (const auto* const in_order = list ? &list->values : tuple ? &tuple->values : nullptr)
      return i < in_order->size() ? std::optional<Inner>({std::to_string(i), (*in_order)[i], false})
                                  : std::nullopt;
    const Pickle::Items* const items = named_in(ref);
    if (!items || i >= items->size()) return std::nullopt;
    const auto& [key, value] = (*items)[i];
    return Inner{key_of(key), value, items == items_of(ref) && (text_of(key) || pickle_.get<double>(key))};
  }

  bool is_tensor(Ref ref) const { return tensor_call(ref) != nullptr; }
  /// Whether a value is an object that is not looked into, or a mapping of such, like arrays of NumPy.
  bool is_closed(Ref ref) const {
    const auto is_value_inert = [&](const auto& item) { return is_inert(item.second); };
    return is_inert(ref) || (items_of(ref) && std::ranges::any_of(*items_of(ref), is_value_inert));
  }

  /// PytorchFile::contents(), with tensors as keep(ref), of at most `left` values and characters.
  nlohmann::json json_of(Ref ref, std::size_t& left, const std::function<std::size_t(Ref)>& keep,
                         int depth = 0) const {
    constexpr int max_depth = 8;
    const std::string_view* const text = text_of(ref);
    const std::size_t size = 1 + (text ? text->size() : 0);
    if (size > left) throw DataError("{}: its pickle holds too much beside tensors", zip_.path());
    left -= size;
    if (text) return std::string(*text);
    if (const auto* const integer = pickle_.get<std::int64_t>(ref)) return *integer;
    if (const auto* const flag = pickle_.get<bool>(ref)) return *flag;
    if (is_tensor(ref)) return keep(ref);
    nlohmann::json value;
    if (const auto* const list = pickle_.get<Pickle::List>(ref); list && depth < max_depth)
      for (const Ref element : list->values) value.push_back(json_of(element, left, keep, depth + 1));
    const Pickle::Items* const items = depth < max_depth ? items_of(ref) : nullptr;
    if (items) value = nlohmann::json::object();
    if (items)
      for (const auto& [key, item] : *items)
        if (const nlohmann::json name = json_of(key, left, keep, depth + 1); name.is_primitive())
          value[name.is_string() ? name.get<std::string>() : name.dump()] =
              json_of(item, left, keep, depth + 1);
    return value;
  }

  /// The entry of a value that is_tensor(). DataError if it is not within its storage.
  PytorchTensor tensor_of(Ref ref, std::string name) const {
    const Pickle::Object& call = *tensor_call(ref);
    const std::vector<Ref>& arguments = arguments_of(call);
    const bool is_untyped = name_of(call).ends_with("_v3");
    PytorchTensor tensor;
    tensor.name = std::move(name);
    const auto malformed = [&](std::string_view what) {
      return DataError("{}: {} {}", zip_.path(), quote(tensor.name), what);
    };
    const std::size_t metadata_at = is_untyped ? 7 : 6;
    if (arguments.size() < metadata_at) throw malformed("has too few arguments");
    if (arguments.size() > metadata_at && !is_nothing(arguments[metadata_at]))
      throw malformed("is a conjugate or negative view; save a clone() of it");
    const auto* const persistent = pickle_.get<Pickle::Persistent>(arguments[0]);
    const auto* const id = persistent ? pickle_.get<Pickle::Tuple>(persistent->id) : nullptr;
    if (!id || id->values.size() != 5 || !text_of(id->values[0]) || *text_of(id->values[0]) != "storage" ||
        !text_of(id->values[2]))
      throw malformed("has no storage");
    const std::string_view storage_name = constant_at(id->values[1]);
    const ElementType* const type = is_untyped ? type_by(&ElementType::dtype, constant_at(arguments[6]))
                                               : type_by(&ElementType::storage, storage_name);
    if (!type || (is_untyped && storage_name != "torch.storage.UntypedStorage"))
      throw malformed("has no element type");
    tensor.dtype = type->element;
    tensor.type_name = type->name;
    tensor.element_bytes = type->bytes;

    const std::string entry = fmt::format("{}data/{}", root_, *text_of(id->values[2]));
    const std::optional<std::size_t> found = zip_.find(entry);
    if (!found) throw malformed(fmt::format("is in the storage {}, which the file lacks", quote(entry)));
    tensor.storage = *found;
    const std::uint64_t storage_bytes = zip_.entries()[*found].bytes,
                        unit_bytes = is_untyped ? 1 : type->bytes;
    const std::optional<std::uint64_t> units = size_at(id->values[4]);
    if (!units || storage_bytes % unit_bytes != 0 || storage_bytes / unit_bytes != *units)
      throw malformed(fmt::format("is in the storage {}, which has {} bytes, unlike in data.pkl",
                                  quote(entry), storage_bytes));

    const std::optional<std::uint64_t> first = size_at(arguments[1]);
    const std::optional<std::vector<std::int64_t>> shape = sizes_at(arguments[2]),
                                                   strides = sizes_at(arguments[3]);
    if (!first || !shape || !strides || shape->size() != strides->size())
      throw malformed("has an offset, a shape or strides that are not sizes");
    tensor.shape = *shape;
    tensor.strides = *strides;
    measure(tensor, *first);
    if (tensor.offset > storage_bytes || tensor.span_bytes > storage_bytes - tensor.offset)
      throw malformed(
          fmt::format("reaches beyond its storage {}, which has {} bytes", quote(entry), storage_bytes));
    return tensor;
  }

 private:
  std::string_view name_of(const Pickle::Object& object) const { return vocabulary_[object.name].name; }
  const std::vector<Ref>& arguments_of(const Pickle::Object& object) const {
    return std::get<Pickle::Tuple>(pickle_[object.arguments]).values;
  }
  /// The call that makes the tensor, also of a parameter; null for other values.
  const Pickle::Object* tensor_call(Ref ref) const {
    const auto* object = pickle_.get<Pickle::Object>(ref);
    if (object && name_of(*object).starts_with("torch._utils._rebuild_parameter") &&
        !arguments_of(*object).empty())
      object = pickle_.get<Pickle::Object>(arguments_of(*object)[0]);
    return object && name_of(*object).starts_with("torch._utils._rebuild_tensor_") ? object : nullptr;
  }
  bool is_nothing(Ref ref) const {
    const auto* const mapping = pickle_.get<Pickle::Mapping>(ref);
    return mapping ? mapping->items.empty() : pickle_.get<Pickle::None>(ref) != nullptr;
  }
  std::string_view constant_at(Ref ref) const {
    const auto* const name = pickle_.get<Pickle::Name>(ref);
    return name ? vocabulary_[name->index].name : "";
  }
  std::optional<std::uint64_t> size_at(Ref ref) const {
    const auto* const number = pickle_.get<std::int64_t>(ref);
    return number && *number >= 0 ? std::optional(static_cast<std::uint64_t>(*number)) : std::nullopt;
  }
  /// A tuple of sizes, by itself or as the argument of torch.Size.
  std::optional<std::vector<std::int64_t>> sizes_at(Ref ref) const {
    constexpr std::size_t max_extents = 32;
    if (const auto* const object = pickle_.get<Pickle::Object>(ref);
        object && name_of(*object) == "torch.Size" && arguments_of(*object).size() == 1)
      ref = arguments_of(*object)[0];
    const auto* const tuple = pickle_.get<Pickle::Tuple>(ref);
    if (!tuple || tuple->values.size() > max_extents) return std::nullopt;
    std::vector<std::int64_t> sizes;
    for (const Ref value : tuple->values) {
      const std::optional<std::uint64_t> size = size_at(value);
      if (!size) return std::nullopt;
      sizes.push_back(static_cast<std::int64_t>(*size));
    }
    return sizes;
  }

  /// Sets offset, span and bytes from the shape, the strides and the first element.
  void measure(PytorchTensor& tensor, std::uint64_t first) const {
    const auto too_large = [&] {
      return DataError("{}: {} claims more elements than any machine could hold", zip_.path(),
                       quote(tensor.name));
    };
    const std::optional<std::uint64_t> bytes = bytes_of_shape(tensor.shape, tensor.element_bytes);
    if (!bytes) throw too_large();
    std::uint64_t last = 0;
    for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
      const auto extent = static_cast<std::uint64_t>(tensor.shape[i]),
                 stride = static_cast<std::uint64_t>(tensor.strides[i]);
      if (extent == 0) continue;
      if (extent == 1) tensor.strides[i] = 0;  // unused, so it may be any number
      std::uint64_t reach = 0;
      if (__builtin_mul_overflow(extent - 1, stride, &reach) || __builtin_add_overflow(last, reach, &last))
        throw too_large();
    }
    constexpr std::uint64_t max_bytes = std::uint64_t{1} << 62;
    if (first > max_bytes / tensor.element_bytes || last >= max_bytes / tensor.element_bytes)
      throw too_large();
    if (*bytes == 0) return;
    tensor.offset = first * tensor.element_bytes;
    tensor.bytes = *bytes;
    tensor.span_bytes = (last + 1) * tensor.element_bytes;
  }

  const Pickle& pickle_;
  std::span<const PickleName> vocabulary_;
  const ZipFile& zip_;
  const std::string& root_;
};

/// A mapping that contains tensors.
struct Candidate {
  std::string key;  ///< "/" is the outermost mapping
  const Pickle::Items* items;
};

constexpr std::array<std::string_view, 3> usual_keys{"state_dict", "model_state_dict", "model"};

/// Where the tensors of a pickle are.
struct Places {
  std::vector<Candidate> mappings{};  ///< from the outermost on
  std::string closed{};    ///< the usual key of objects that are not looked into, like arrays of NumPy
  std::size_t others = 0;  ///< tensors elsewhere, without the state of optimizers
  std::string first_other{};

  std::string text_of_others() const {
    return fmt::format("{}, the first at {}", pluralized(others, "tensor"), quote(first_other));
  }
};

/// Enters mappings through keys that are texts or floats, and what the key `wanted` names: also integers, as
/// an optimizer's state has them, elements of lists and attributes of objects. Visits each value once.
Places places_of(const Interpreter& values, const Pickle& pickle, const std::string& wanted) {
  constexpr int max_depth = 6;
  struct Visit {
    std::uint32_t parent, number;  ///< index into the visits; of the value in its parent
    Ref ref;
    int depth;
    bool enters;  ///< else it only counts tensors
  };
  Places places;
  std::vector<Visit> visits{{0, 0, pickle.root(), 0, true}};
  std::vector<char> named(pickle.size()), seen_closed(pickle.size()), seen(pickle.size());
  seen[pickle.root()] = true;
  const auto keys_to = [&](std::size_t visit) {
    std::vector<std::string> keys;
    for (; visit != 0; visit = visits[visit].parent)
      keys.push_back(values.inner_at(visits[visits[visit].parent].ref, visits[visit].number)->key);
    std::ranges::reverse(keys);
    return keys.empty() ? "/" : fmt::format("{}", fmt::join(keys, "/"));
  };
  for (std::size_t at = 0; at < visits.size(); ++at) {
    const Visit visit = visits[at];
    if (values.is_tensor(visit.ref)) continue;
    const Pickle::Items* const items = visit.enters ? values.named_in(visit.ref) : nullptr;
    const std::size_t before = visits.size();
    bool has_tensors = false, is_optimizer = false;
    for (std::uint32_t i = 0; const auto inner = values.inner_at(visit.ref, i); ++i) {
      const auto& [key, value, by_name] = *inner;
      const bool is_wanted = fmt::format("/{}/", wanted).find(fmt::format("/{}/", key)) != std::string::npos,
                 by_itself = by_name && visit.depth < max_depth && key.size() <= max_key_bytes &&
                             values.items_of(value),
                 enters = visit.enters && (is_wanted || by_itself);
      is_optimizer |= wanted.empty() && key == "param_groups";
      if (at == 0 && std::ranges::find(usual_keys, key) != usual_keys.end() && values.is_closed(value))
        places.closed = key;
      if (items && values.is_tensor(value))
        named[value] = has_tensors = true;
      else if (!std::exchange((enters ? seen : seen_closed)[value], true))
        visits.push_back({static_cast<std::uint32_t>(at), i, value, visit.depth + 1, enters});
    }
    if (is_optimizer) visits.resize(before);
    if (has_tensors) places.mappings.push_back({keys_to(at), items});
  }
  for (std::size_t at = 1; at < visits.size(); ++at)
    if (values.is_tensor(visits[at].ref) && !std::exchange(named[visits[at].ref], true) &&
        places.others++ == 0)
      places.first_other = keys_to(at);
  return places;
}

std::string keys_of(std::span<const Candidate> all) {
  std::vector<std::string> keys;
  for (const Candidate& candidate : all) keys.push_back(quote(candidate.key));
  return list_of(keys);
}

const Candidate& choose(const Places& places, const std::string& key, const std::string& path) {
  const std::vector<Candidate>& all = places.mappings;
  const auto named = [&](std::string_view name) { return std::ranges::find(all, name, &Candidate::key); };
  if (key.empty() && !places.closed.empty() && named(places.closed) == all.end())
    throw DataError(
        "{}: what is under {} are arrays of NumPy or an object, not tensors: save model.state_dict()", path,
        quote(places.closed));
  if (all.empty())
    throw DataError(
        "{}: its pickle is not a mapping of names to tensors, and holds none{}: save model.state_dict()",
        path, places.others == 0 ? "" : " by name, but " + places.text_of_others());
  if (!key.empty()) {
    if (named(key) != all.end()) return *named(key);
    throw DataError("{}: holds no tensors with names under {}, but under {}", path, quote(key), keys_of(all));
  }
  if (all.size() == 1) return all.front();
  for (const std::string_view usual : usual_keys)
    if (named(usual) != all.end()) return *named(usual);
  throw DataError("{0}: holds tensors under {1}: choose one by lockstep convert {0} OUT.h5 --key KEY", path,
                  keys_of(all));
}

/// The folder of all entries, with '/'.
std::string root_of(const ZipFile& zip) {
  constexpr std::string_view pickle = "data.pkl";
  std::string root;
  for (const ZipEntry& entry : zip.entries()) {
    const std::size_t slash = entry.name.find('/');
    if (slash == std::string::npos || entry.name.substr(slash + 1) != pickle) continue;
    if (!root.empty()) throw DataError("{}: holds data.pkl more than once", zip.path());
    root = entry.name.substr(0, slash + 1);
  }
  if (root.empty())
    throw DataError("{}: is a zip archive without data.pkl: did torch.save write it?", zip.path());
  if (zip.find(root + "constants.pkl"))
    throw DataError("{}: is a program of torch.jit.save: save the state_dict() of the model instead",
                    zip.path());
  return root;
}

void check_byte_order(const ZipFile& zip, const std::string& root) {
  constexpr std::uint64_t max_bytes = 64;
  const std::optional<std::size_t> entry = zip.find(root + "byteorder");
  if (!entry) return;  // before PyTorch 2.1
  const std::string order = zip.text(*entry, max_bytes);
  if (order != "little")
    throw DataError(
        "{}: its numbers are {} endian, which is not supported; save it on a little-endian machine",
        zip.path(), order == "big" ? "big" : quote(order));
}

bool is_row_major(const PytorchTensor& tensor) {
  std::int64_t expected = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

/// Copies elements to row-major order. `from` begins with the tensor's first element. No extent is 0.
void gather(const PytorchTensor& tensor, std::span<const std::byte> span, std::span<std::byte> out) {
  std::vector<std::int64_t> index(tensor.shape.size(), 0);
  std::int64_t from = 0;  // in elements
  for (std::size_t to = 0; to < out.size(); to += tensor.element_bytes) {
    std::memcpy(out.data() + to, span.data() + static_cast<std::size_t>(from) * tensor.element_bytes,
                tensor.element_bytes);
    for (std::size_t i = index.size(); i-- > 0;) {
      from += tensor.strides[i];
      if (++index[i] < tensor.shape[i]) break;
      from -= index[i] * tensor.strides[i];
      index[i] = 0;
    }
  }
}

}  // namespace

bool begins_as_zip(std::string_view start) {
  return start.starts_with("PK\3\4") || start.starts_with("PK\5\6");
}

bool begins_as_old_pytorch(std::string_view start) {
  constexpr std::string_view magic_number =
      "\x80\x02\x8a\nl\xfc\x9c"
      "F\xf9 j\xa8P\x19.";
  constexpr std::size_t tar_magic_at = 257;
  return start.starts_with(magic_number) ||
         (start.size() > tar_magic_at && start.substr(tar_magic_at).starts_with("ustar"));
}

PytorchFile::PytorchFile(const std::string& path, const std::string& key, bool contents)
    : WeightSource(path), zip_(path), root_(root_of(zip_)), checked_(zip_.entries().size(), false) {
  constexpr std::uint64_t max_times = 16, min_bytes = std::uint64_t{1} << 20;
  constexpr std::size_t max_listed = 8;
  check_byte_order(zip_, root_);
  const std::string bytes = zip_.text(*zip_.find(root_ + "data.pkl"), Pickle::max_bytes);
  const std::vector<PickleName> vocabulary = python::vocabulary();
  const Pickle pickle(bytes, vocabulary, path + ": data.pkl");
  const Interpreter values(pickle, vocabulary, zip_, root_);
  for (std::size_t i = 0; const auto outer = values.inner_at(pickle.root(), i); ++i)
    for (std::size_t j = 0; const auto inner = values.inner_at(outer->value, j); ++j)
      if (const auto* const number = pickle.get<std::int64_t>(inner->value);
          number && outer->key == "model_args" && inner->by_name)
        model_args_[inner->key] = *number;
  std::uint64_t left_bytes = std::max(min_bytes, max_times * zip_.file_bytes());
  const auto keep = [&](Ref value, std::string name) {
    tensors_.push_back(views_.emplace_back(values.tensor_of(value, std::move(name))));
    const std::uint64_t used_bytes = std::max(views_.back().bytes, views_.back().span_bytes);
    if (used_bytes > left_bytes)
      throw DataError("{}: its tensors are views that would take more than {} times its bytes", path,
                      max_times);
    left_bytes -= used_bytes;
    return tensors_.size() - 1;
  };
  if (contents) {
    std::size_t left = Pickle::max_values;
    contents_ = values.json_of(pickle.root(), left, [&](Ref value) { return keep(value, "a tensor"); });
    return;
  }
  const Places places = places_of(values, pickle, key);
  const std::vector<Candidate>& all = places.mappings;
  const Candidate& mapping = choose(places, key, path);

  std::unordered_set<std::string_view> names;
  std::vector<std::string> others;
  for (const auto& [name_ref, value] : *mapping.items) {
    const std::string_view* const name = values.text_of(name_ref);
    if (!values.is_tensor(value)) {
      if (others.size() < max_listed)
        others.push_back(name ? quote(*name) : "a key that is not a text");
      else
        others.emplace_back();  // only counted
      continue;
    }
    if (!name || !is_printable(*name))
      throw DataError("{}: data.pkl gives a tensor a name that is not printable text", path);
    if (!names.insert(*name).second) throw DataError("{}: {} occurs twice", path, quote(*name));
    keep(value, std::string(*name));
  }
  if (all.size() > 1) {
    std::vector<Candidate> rest;
    for (const Candidate& candidate : all)
      if (candidate.items != mapping.items) rest.push_back(candidate);
    notes_.push_back(fmt::format("{}: reads the tensors under {}; --key selects those under {}", path,
                                 quote(mapping.key), keys_of(rest)));
  }
  if (key.empty() && places.others > 0)
    notes_.push_back(
        fmt::format("{}: left out, in lists, objects or deep: {}", path, places.text_of_others()));
  if (!others.empty())
    notes_.push_back(
        fmt::format("{}: left out, as they are not tensors: {}", path, list_of(others, max_listed)));
}

std::string PytorchFile::metadata(const std::string& key) const {
  constexpr std::uint64_t max_bytes = std::uint64_t{64} << 20;
  const std::optional<std::size_t> entry = zip_.find(root_ + key);
  return entry ? zip_.text(*entry, max_bytes) : "";
}

void PytorchFile::read(std::size_t index, std::span<std::byte> out) const {
  const PytorchTensor& tensor = views_.at(index);
  if (out.size() != tensor.bytes)
    throw UsageError("{}: {} has {} bytes, not {}", path(), quote(tensor.name), tensor.bytes, out.size());
  if (out.empty()) return;
  const bool is_whole = out.size() == zip_.entries()[tensor.storage].bytes && is_row_major(tensor);
  if (!checked_[tensor.storage] && !is_whole) zip_.check(tensor.storage);
  if (is_row_major(tensor)) {
    zip_.read(tensor.storage, tensor.offset, out);
  } else {
    std::vector<std::byte> span(tensor.span_bytes);
    zip_.read(tensor.storage, tensor.offset, span);
    gather(tensor, span, out);
  }
  if (!checked_[tensor.storage] && is_whole) zip_.check(tensor.storage, out);
  checked_[tensor.storage] = true;
}

}  // namespace lockstep::checkpoint
