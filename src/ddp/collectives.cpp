#include "lockstep/ddp/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/comm/agreement.h"
#include "lockstep/ops/elementwise.h"
#include "tensor/element_types.h"

namespace lockstep {
namespace {

enum class Kind : std::int32_t { all_reduce, reduce, broadcast, scatter, gather, all_gather, barrier };

constexpr std::array calls_of_kinds{"calls all_reduce", "calls reduce", "calls broadcast",
                                    "calls scatter",    "calls gather", "calls all_gather",
                                    "calls barrier"};
constexpr std::string_view word_calls = "calls ";
constexpr std::array names_of_ops{"sum", "mean", "min", "max"};

/// A rank's call as the other ranks see it: plain numbers.
struct Call {
  Kind kind = Kind::barrier;
  std::int32_t op = -1;    ///< a ReduceOp
  std::int32_t root = -1;  ///< -1: none
  std::int32_t json = 0;   ///< not a tensor
  std::int32_t dtype = -1;
  std::int32_t rank = -1;  ///< dimensions; -1: no tensor
  std::array<std::int64_t, Shape::max_rank> extents{};
  std::int32_t on_device = 0;
  std::int32_t wrong = 0;  ///< this rank cannot carry out the call

  Shape shape() const { return Shape(std::span(extents).first(static_cast<std::size_t>(rank))); }
  /// The call joins or divides along the first dimension, in which ranks may differ.
  bool by_rows() const { return kind == Kind::gather || kind == Kind::all_gather; }
  std::int64_t rows() const { return rank == 0 ? 1 : extents[0]; }
  std::int64_t bytes() const { return shape().numel() * static_cast<std::int64_t>(bytes_of(DType(dtype))); }
};

std::string describe(const Call& call) {
  std::string text =
      std::string(calls_of_kinds[static_cast<std::size_t>(call.kind)]).substr(word_calls.size());
  if (call.op >= 0) text += fmt::format(" ({})", names_of_ops[static_cast<std::size_t>(call.op)]);
  if (call.json) text += " of JSON";
  if (call.rank >= 0) text += fmt::format(" of {} {}", to_string(DType(call.dtype)), to_string(call.shape()));
  if (call.on_device) text += " on its device";
  if (call.root >= 0) text += fmt::format(" with root {}", call.root);
  return text;
}

bool agree(const Call& a, const Call& b) {
  if (a.kind != b.kind || a.op != b.op || a.root != b.root || a.json != b.json) return false;
  if (a.kind == Kind::scatter) return true;  // only the root has a tensor
  if (a.dtype != b.dtype || a.rank != b.rank) return false;
  if (a.op >= 0 && a.on_device != b.on_device)
    return false;  // sums on the device and in CPU memory cannot be combined
  const std::size_t first = a.by_rows() && a.rank > 0 ? 1 : 0;
  return std::equal(a.extents.begin() + first, a.extents.end(), b.extents.begin() + first);
}

/// Compares the calls of all ranks and returns them. `problem`: why this rank cannot carry out its own.
std::vector<Call> exchange(Context& context, Call mine, const std::string& problem = {}) {
  comm::HostGroup& world = context.world();
  mine.wrong = problem.empty() ? 0 : 1;
  const comm::NamedCall named(world, calls_of_kinds[static_cast<std::size_t>(mine.kind)], "a collective");
  std::vector<Call> all = comm::all_gather_values(world, mine);
  if (std::ranges::any_of(all, [](const Call& call) { return call.wrong != 0; })) {
    comm::run_on_all(world, [&] {
      if (!problem.empty()) throw UsageError("{}: {}", describe(mine), problem);
    });
  }
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (agree(all[0], all[rank])) continue;
    throw UsageError("rank 0 calls {}, but rank {} calls {}; every rank must make the same call",
                     describe(all[0]), rank, describe(all[rank]));
  }
  return all;
}

bool has_root(Kind kind) {
  return kind == Kind::reduce || kind == Kind::broadcast || kind == Kind::scatter || kind == Kind::gather;
}

/// Why this rank cannot carry out the call; empty if it can.
std::string problem_of_root(Context& context, const Call& call) {
  const int ranks = context.world().size();
  if (!has_root(call.kind) || (call.root >= 0 && call.root < ranks)) return {};
  return fmt::format("there is no rank {} among {}", call.root, ranks);
}

std::string problem_of(Context& context, const Call& call, const Tensor& tensor) {
  if (const std::string problem = problem_of_root(context, call); !problem.empty()) return problem;
  if (call.kind == Kind::scatter && context.world().rank() != call.root) return {};
  if (!tensor && tensor.numel() != 0) return "the tensor argument is missing";
  if (tensor.channel_block() != 1) return "the tensor is stored in channel blocks, which stay within a tape";
  if (tensor.device() != Device::cpu() && tensor.device() != context.backend().device())
    return fmt::format("the tensor is on {}, but the program computes on {}", to_string(tensor.device()),
                       to_string(context.backend().device()));
  if (call.op == static_cast<int>(ReduceOp::mean) && !is_floating(tensor.dtype()))
    return "a mean needs floats; divide the sum, or convert the tensor first";
  if (call.kind == Kind::scatter && tensor.shape().rank() == 0) return "a scalar has no rows to scatter";
  if (call.kind == Kind::scatter && tensor.size(0) % context.world().size() != 0)
    return fmt::format("{} rows cannot be divided equally among {} ranks", tensor.size(0),
                       context.world().size());
  return {};
}

/// Calls with a tensor.
std::vector<Call> exchange(Context& context, Kind kind, const Tensor& tensor, int root, int op = -1) {
  Call mine{.kind = kind, .op = op, .root = root};
  if (tensor || tensor.numel() == 0) {
    mine.dtype = static_cast<std::int32_t>(tensor.dtype());
    mine.rank = tensor.shape().rank();
    std::ranges::copy(tensor.shape(), mine.extents.begin());
    mine.on_device = tensor.device() != Device::cpu();
  }
  return exchange(context, mine, problem_of(context, mine, tensor));
}

std::byte* bytes(const Tensor& tensor) { return static_cast<std::byte*>(tensor.raw()); }

// The bytes that pass through a rank at once, beside its own tensor.
constexpr std::int64_t max_host_bytes = std::int64_t{8} << 20, max_device_bytes = std::int64_t{64} << 20;

/// Calls piece(first, end) for runs of [0, count).
template <class Piece>
void in_pieces(std::int64_t count, std::int64_t max_count, const Piece& piece) {
  for (std::int64_t first = 0; first < count; first += max_count)
    piece(first, std::min(first + max_count, count));
}

// --- all_reduce

/// Sums float32 or float64, on the transport's device, along the tree over ranks.
void sum_by_transport(Context& context, const Tensor& tensor) {
  const bool on_device = tensor.device() != Device::cpu();
  comm::GradientTransport& transport = on_device ? context.transport() : context.world();
  const int ranks = context.world().size();
  const comm::ShardMap map(ranks, ranks);
  const auto element = static_cast<std::int64_t>(bytes_of(tensor.dtype()));
  const Tensor all = tensor.reshape({tensor.numel()});
  comm::FlatBuffer& memory = context.sum_memory(
      transport, static_cast<std::size_t>(
                     std::min(all.numel() * element, on_device ? max_device_bytes : max_host_bytes)));
  const auto room = static_cast<std::int64_t>(memory.accumulator_bytes()) / element;
  in_pieces(all.numel(), room, [&](std::int64_t first, std::int64_t end) {
    const Tensor piece = all.rows(first, end);
    const Tensor shared = Tensor::view(memory.accumulator(0), {end - first}, tensor.dtype(), tensor.device());
    const auto copy = [&](const Tensor& from, const Tensor& to) {
      on_device ? context.backend().copy(from, to) : copy_elements(from, to);
    };
    copy(piece, shared);
    comm::finish(transport,
                 transport.start_tree_sum(
                     {.flat_buffer = &memory, .count = end - first, .dtype = tensor.dtype()}, map));
    copy(shared, piece);
  });
}

float number(BFloat16 value) { return from_bfloat16_bits(value.bits); }
float number(Float16 value) { return from_float16_bits(value.bits); }
template <class T>
T number(T value) {
  return value;
}

template <class T>
T combined(ReduceOp op, T a, T b) {
  const auto left = number(a), right = number(b);
  if (op == ReduceOp::min) return left != left || left < right ? a : b;
  if (op == ReduceOp::max) return left != left || left > right ? a : b;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));  // wraps around
  } else {
    return a;  // floats are summed by the transport
  }
}

/// Minima, maxima, and sums of integers: a fold over the ranks in rank order, in CPU memory.
void fold_over_ranks(comm::HostGroup& world, const Tensor& tensor, ReduceOp op) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const auto element = static_cast<std::int64_t>(bytes_of(tensor.dtype()));
  const std::int64_t max_count = std::max<std::int64_t>(4096, max_host_bytes / world.size()) / element;
  std::vector<std::byte> all(ranks * static_cast<std::size_t>(std::min(max_count, tensor.numel()) * element));
  in_pieces(tensor.numel(), max_count, [&](std::int64_t first, std::int64_t end) {
    const auto count = static_cast<std::size_t>(end - first);
    world.all_gather(bytes(tensor) + first * element, count * static_cast<std::size_t>(element), all.data());
    with_element_type(tensor.dtype(), [&]<class T>() {
      auto* const to = reinterpret_cast<T*>(bytes(tensor)) + first;
      const auto* const from = reinterpret_cast<const T*>(all.data());
      std::copy_n(from, count, to);
      for (std::size_t rank = 1; rank < ranks; ++rank) {
        for (std::size_t i = 0; i < count; ++i) to[i] = combined(op, to[i], from[rank * count + i]);
      }
    });
  });
}

/// Sums floats, in CPU memory, and divides them for a mean.
void sum_floats(Context& context, const Tensor& tensor, ReduceOp op) {
  if (tensor.dtype() == DType::bfloat16 || tensor.dtype() == DType::float16) {
    const bool bf16 = tensor.dtype() == DType::bfloat16;
    const Tensor wide = Tensor::empty(tensor.shape());
    auto* const bits = static_cast<std::uint16_t*>(tensor.raw());
    auto* const values = wide.data<float>();
    const std::int64_t count = tensor.numel();
    for (std::int64_t i = 0; i < count; ++i)
      values[i] = bf16 ? from_bfloat16_bits(bits[i]) : from_float16_bits(bits[i]);
    sum_floats(context, wide, op);
    for (std::int64_t i = 0; i < count; ++i)
      bits[i] = bf16 ? bfloat16_bits(values[i]) : float16_bits(values[i]);
    return;
  }
  sum_by_transport(context, tensor);
  if (op != ReduceOp::mean) return;
  with_element_type(tensor.dtype(), [&]<class T>() {
    if constexpr (std::is_floating_point_v<T>) {
      auto* const values = tensor.data<T>();
      std::for_each_n(values, tensor.numel(),
                      [&](T& value) { value /= static_cast<T>(context.world().size()); });
    }
  });
}

/// Whether the sum is computed on the tensor's device.
bool sums_on_device(Context& context, const Tensor& tensor, ReduceOp op) {
  const comm::GradientTransport& of_cpus = context.world();
  if (tensor.device() == Device::cpu() || &context.transport() == &of_cpus) return false;
  return (tensor.dtype() == DType::float32 && (op == ReduceOp::sum || op == ReduceOp::mean)) ||
         (tensor.dtype() == DType::float64 && op == ReduceOp::sum);
}

void combine(Context& context, const Tensor& tensor, ReduceOp op) {
  if (context.world().size() == 1 || tensor.numel() == 0) return;
  if (sums_on_device(context, tensor, op)) {
    sum_by_transport(context, tensor);
    if (op == ReduceOp::mean) {
      kernels::Backend& backend = context.backend();
      const Tensor ranks = backend.empty({});
      backend.fill(ranks, context.world().size());
      backend.run(ops::Map<ops::Quotient>{{}, {tensor, ranks}, tensor});
    }
    return;
  }
  const Tensor here = kernels::on_cpu(tensor, &context.backend());
  if (is_floating(tensor.dtype()) && (op == ReduceOp::sum || op == ReduceOp::mean)) {
    sum_floats(context, here, op);
  } else {
    fold_over_ranks(context.world(), here, op);
  }
  kernels::transfer(here, tensor, &context.backend());
}

// --- gathers

std::vector<std::size_t> bytes_of_ranks(const std::vector<Call>& calls) {
  std::vector<std::size_t> sizes;
  for (const Call& call : calls) sizes.push_back(static_cast<std::size_t>(call.bytes()));
  return sizes;
}

/// A tensor for the joined tensors of all ranks, in CPU memory.
Tensor room_for_all(const std::vector<Call>& calls) {
  std::int64_t rows = 0;
  for (const Call& call : calls) rows += call.rows();
  const Call& any = calls.front();
  return Tensor::empty(any.rank == 0 ? Shape{rows} : any.shape().with(0, rows), DType(any.dtype));
}

Tensor where(Context& context, const Tensor& like, const Tensor& result) {
  return like.device() == Device::cpu() ? result : kernels::on_device(result, context.backend());
}

}  // namespace

void all_reduce(Context& context, const Tensor& tensor, ReduceOp op) {
  exchange(context, Kind::all_reduce, tensor, -1, static_cast<int>(op));
  combine(context, tensor, op);
}

double all_reduce(Context& context, double value, ReduceOp op) {
  all_reduce(context, Tensor::view(&value, {}, DType::float64), op);
  return value;
}

void reduce(Context& context, const Tensor& tensor, int root, ReduceOp op) {
  exchange(context, Kind::reduce, tensor, root, static_cast<int>(op));
  kernels::Backend& backend = context.backend();
  const bool on_cpu = tensor.device() == Device::cpu();
  const Tensor copy =
      on_cpu ? Tensor::empty(tensor.shape(), tensor.dtype()) : backend.empty(tensor.shape(), tensor.dtype());
  kernels::transfer(tensor, copy, &backend);
  combine(context, copy, op);
  if (context.world().rank() == root) kernels::transfer(copy, tensor, &backend);
}

void broadcast(Context& context, const Tensor& tensor, int root) {
  exchange(context, Kind::broadcast, tensor, root);
  const Tensor here = kernels::on_cpu(tensor, &context.backend());
  context.world().broadcast(here.raw(), here.bytes(), root);
  kernels::transfer(here, tensor, &context.backend());
}

Tensor scatter(Context& context, const Tensor& tensor, int root) {
  const std::vector<Call> calls = exchange(context, Kind::scatter, tensor, root);
  const Call& whole = calls[static_cast<std::size_t>(root)];
  comm::HostGroup& world = context.world();
  const Tensor mine = Tensor::empty(whole.shape().with(0, whole.rows() / world.size()), DType(whole.dtype));
  const bool is_root = world.rank() == root;
  const Tensor here = is_root ? kernels::on_cpu(tensor, &context.backend()) : Tensor();
  const auto part = static_cast<std::int64_t>(mine.bytes()), begin = part * world.rank();
  std::vector<std::byte> passing(static_cast<std::size_t>(std::min(whole.bytes(), max_host_bytes)));
  in_pieces(whole.bytes(), max_host_bytes, [&](std::int64_t first, std::int64_t end) {
    std::byte* const piece = is_root ? bytes(here) + first : passing.data();
    world.broadcast(piece, static_cast<std::size_t>(end - first), root);
    const std::int64_t from = std::max(first, begin), to = std::min(end, begin + part);
    if (from < to)
      std::memcpy(bytes(mine) + from - begin, piece + from - first, static_cast<std::size_t>(to - from));
  });
  return whole.on_device ? kernels::on_device(mine, context.backend()) : mine;
}

Tensor gather(Context& context, const Tensor& tensor, int root) {
  const std::vector<Call> calls = exchange(context, Kind::gather, tensor, root);
  comm::HostGroup& world = context.world();
  const bool is_root = world.rank() == root;
  const Tensor here = kernels::on_cpu(tensor, &context.backend());
  const std::vector<std::size_t> sizes = bytes_of_ranks(calls);
  const Tensor all = is_root ? room_for_all(calls) : Tensor();
  const std::int64_t max_count = std::max<std::int64_t>(4096, max_host_bytes / world.size());
  std::vector<std::byte> passing;
  in_pieces(static_cast<std::int64_t>(*std::ranges::max_element(sizes)), max_count,
            [&](std::int64_t first, std::int64_t end) {
              const auto clamped = [&](std::size_t size) {
                return std::clamp(static_cast<std::int64_t>(size), first, end) - first;
              };
              std::vector<std::size_t> pieces;
              std::size_t sum = 0;
              for (const std::size_t size : sizes) sum += pieces.emplace_back(clamped(size));
              passing.resize(sum);
              world.all_gather_unequal(bytes(here) + std::min<std::size_t>(first, here.bytes()), pieces,
                                       passing.data());
              if (!is_root) return;
              const std::byte* from = passing.data();
              std::byte* to = bytes(all);
              for (std::size_t rank = 0; rank < sizes.size(); from += pieces[rank], to += sizes[rank++]) {
                if (pieces[rank] > 0) std::memcpy(to + first, from, pieces[rank]);
              }
            });
  return is_root ? where(context, tensor, all) : Tensor();
}

Tensor all_gather(Context& context, const Tensor& tensor) {
  const std::vector<Call> calls = exchange(context, Kind::all_gather, tensor, -1);
  const Tensor here = kernels::on_cpu(tensor, &context.backend()), all = room_for_all(calls);
  context.world().all_gather_unequal(here.raw(), bytes_of_ranks(calls), all.raw());
  return where(context, tensor, all);
}

void barrier(Context& context) { exchange(context, {.kind = Kind::barrier}); }

namespace {

void exchange_json(Context& context, Kind kind, int root, const std::string& problem = {}) {
  const Call mine{.kind = kind, .root = root, .json = 1};
  exchange(context, mine, problem.empty() ? problem_of_root(context, mine) : problem);
}

}  // namespace

nlohmann::json broadcast(Context& context, const nlohmann::json& value, int root) {
  exchange_json(context, Kind::broadcast, root);
  comm::HostGroup& world = context.world();
  std::vector<std::uint8_t> cbor;
  if (world.rank() == root) cbor = nlohmann::json::to_cbor(value);
  std::uint64_t size = cbor.size();
  world.broadcast(&size, sizeof size, root);
  cbor.resize(size);
  world.broadcast(cbor.data(), size, root);
  return nlohmann::json::from_cbor(cbor);
}

nlohmann::json scatter(Context& context, const std::vector<nlohmann::json>& values, int root) {
  const auto ranks = static_cast<std::size_t>(context.world().size());
  const bool wrong = context.world().rank() == root && values.size() != ranks;
  exchange_json(context, Kind::scatter, root,
                wrong ? fmt::format("{} values for {} ranks", values.size(), ranks) : std::string());
  const nlohmann::json all = broadcast(context, nlohmann::json(values), root);
  return all[static_cast<std::size_t>(context.world().rank())];
}

std::vector<nlohmann::json> gather(Context& context, const nlohmann::json& value, int root) {
  exchange_json(context, Kind::gather, root);
  std::vector<nlohmann::json> all = comm::all_gather_json(context.world(), value);
  if (context.world().rank() != root) all.clear();
  return all;
}

std::vector<nlohmann::json> all_gather(Context& context, const nlohmann::json& value) {
  exchange_json(context, Kind::all_gather, -1);
  return comm::all_gather_json(context.world(), value);
}

}  // namespace lockstep
