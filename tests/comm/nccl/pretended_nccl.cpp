// NCCL, by MPI and in the CPU's memory: a communicator that does not block, and refuses what NCCL leaves
// undefined.
//
// Its stream is brought as far as the call, ranks exchange what lies there then, and results are written when
// the stream comes to it: the earliest that NCCL may read, and the latest that it may write. What has changed
// in between would have been sent now and then, and ends the program. So MPI is called where NCCL is, by the
// one thread that may, whichever thread carries out the stream's work.
#include <mpi.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "comm/nccl/library.h"
#include "emulated_gpu/runtime.h"
#include "emulated_gpu/streams.h"
#include "lockstep/base/error.h"
#include "pretended_nccl.h"
#include "simulated_gpus.h"

using lockstep::DType;
using lockstep::FailureError;
using lockstep::test::Talk;

struct ncclComm {
  MPI_Comm mpi = MPI_COMM_NULL;
  int rank = 0, size = 1;
  int looks = 0;  ///< until the last call counts as taken up
  bool finalized = false;
  std::vector<Talk> group;
  cudaStream_t stream = nullptr;                       ///< the group's
  std::map<const std::byte*, std::size_t> registered;  ///< bytes by first
};

namespace {

lockstep::test::PretendedNccl state;

/// Those that were given up, too: who is still inside one may come back.
std::set<std::unique_ptr<ncclComm>> made_communicators;

int group_depth = 0;
ncclComm* grouped = nullptr;

bool registered(const ncclComm& comm, const std::byte* data) {
  const auto next = comm.registered.upper_bound(data);
  return next != comm.registered.begin() && data < std::prev(next)->first + std::prev(next)->second;
}

/// Memory is registered on both sides of a call, or on none.
void check_registration(bool here, bool there) {
  if (here != there) throw FailureError("NCCL: registered memory meets memory that is not");
}

/// Of a call's memory, in bytes.
struct Piece {
  std::size_t first = 0, bytes = 0;
};

struct Call {
  Talk talk;
  Piece whole, read, written;            ///< on this rank
  std::vector<std::byte> before, after;  ///< the whole
};

Call call_of(const Talk& talk, const ncclComm& comm) {
  const auto rank = static_cast<std::size_t>(comm.rank), ranks = static_cast<std::size_t>(comm.size);
  const std::size_t bytes = static_cast<std::size_t>(talk.amount) * bytes_of(talk.dtype);
  const Piece all{0, bytes}, of_all{0, bytes * ranks}, own{bytes * rank, bytes}, none;
  const bool root = talk.peer == comm.rank;
  switch (talk.kind) {
    case Talk::Kind::all_reduce:
      return {talk, all, all, all, {}, {}};
    case Talk::Kind::reduce:
      return {talk, all, all, root ? all : none, {}, {}};
    case Talk::Kind::broadcast:
      return {talk, all, root ? all : none, root ? none : all, {}, {}};
    case Talk::Kind::reduce_scatter:
      return {talk, of_all, of_all, own, {}, {}};
    case Talk::Kind::all_gather:
      return {talk, of_all, own, of_all, {}, {}};
    case Talk::Kind::send:
      return {talk, all, all, none, {}, {}};
    default:
      return {talk, all, none, all, {}, {}};
  }
}

/// When the stream comes to it.
void write_results(const std::vector<Call>& calls) {
  for (const auto& [talk, whole, read, written, before, after] : calls) {
    if (read.bytes > 0 && std::memcmp(talk.data + read.first, before.data() + read.first, read.bytes) != 0)
      lockstep::emulated_gpu::refuse("NCCL: what was being sent has changed: a stream has not waited");
  }
  for (const auto& [talk, whole, read, written, before, after] : calls) {
    if (written.bytes > 0)
      std::memcpy(talk.data + written.first, after.data() + written.first, written.bytes);
  }
}

/// What one rank brings to a collective call, among all that it brings to the calls of the group.
struct Part {
  Talk talk;
  bool registered = false;
  std::size_t place = 0;
};

/// All of a group in two messages: the calls of every rank, and what they are about.
void collectives(const ncclComm& comm, std::vector<Call>& calls) {
  std::vector<Part> mine;
  std::vector<std::byte> my_data;
  for (const Call& call : calls) {
    mine.push_back({call.talk, registered(comm, call.talk.data), my_data.size()});
    my_data.insert(my_data.end(), call.before.begin(), call.before.end());
  }
  const auto ranks = static_cast<std::size_t>(comm.size);
  std::vector<Part> parts(ranks * mine.size());
  std::vector<std::byte> data(ranks * my_data.size());
  const auto part_bytes = static_cast<int>(mine.size() * sizeof(Part));
  const auto data_bytes = static_cast<int>(my_data.size());
  MPI_Allgather(mine.data(), part_bytes, MPI_BYTE, parts.data(), part_bytes, MPI_BYTE, comm.mpi);
  MPI_Allgather(my_data.data(), data_bytes, MPI_BYTE, data.data(), data_bytes, MPI_BYTE, comm.mpi);
  for (std::size_t call = 0; call < mine.size(); ++call) {
    std::vector<const Talk*> of_rank;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      Part& part = parts[rank * mine.size() + call];
      check_registration(mine[call].registered, part.registered);
      part.talk.data = data.data() + rank * my_data.size() + part.place;
      of_rank.push_back(&part.talk);
    }
    lockstep::test::carry_out(of_rank);
    const std::byte* const result = of_rank[static_cast<std::size_t>(comm.rank)]->data;
    calls[call].after.assign(result, result + calls[call].whole.bytes);
  }
}

void messages(const ncclComm& comm, std::vector<Call>& calls) {
  std::vector<MPI_Request> requests;
  for (Call& call : calls) {
    requests.emplace_back();
    const auto bytes = static_cast<int>(call.whole.bytes);
    const int peer = call.talk.peer;
    if (call.talk.kind == Talk::Kind::send) {
      const int tag = registered(comm, call.talk.data) ? 1 : 0;
      MPI_Isend(call.before.data(), bytes, MPI_BYTE, peer, tag, comm.mpi, &requests.back());
    } else {
      call.after.resize(call.whole.bytes);
      MPI_Irecv(call.after.data(), bytes, MPI_BYTE, peer, MPI_ANY_TAG, comm.mpi, &requests.back());
    }
  }
  std::vector<MPI_Status> statuses(requests.size());
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), statuses.data());
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    if (calls[i].talk.kind == Talk::Kind::receive)
      check_registration(registered(comm, calls[i].talk.data), statuses[i].MPI_TAG == 1);
  }
}

/// A group holds messages or collective calls.
void make_calls(const ncclComm& comm, const std::vector<Talk>& group, cudaStream_t stream) {
  if (cudaStreamSynchronize(stream) != cudaSuccess)
    lockstep::emulated_gpu::refuse("NCCL: its stream cannot be brought up to the call");
  std::vector<Call> calls;
  for (const Talk& talk : group) {
    calls.push_back(call_of(talk, comm));
    calls.back().before.assign(talk.data, talk.data + calls.back().whole.bytes);
  }
  if (group.front().message()) {
    messages(comm, calls);
  } else {
    collectives(comm, calls);
  }
  lockstep::emulated_gpu::enqueue(stream, [calls = std::move(calls)] { write_results(calls); });
}

/// Where the stream is captured, each launch of the graph makes the calls: of all ranks at once.
ncclResult_t carry_out(ncclComm& comm) {
  lockstep::emulated_gpu::call_for(comm.stream,
                                   [&comm, group = std::exchange(comm.group, {})](cudaStream_t stream) {
                                     make_calls(comm, group, stream);
                                   });
  comm.looks = 2;
  return ncclInProgress;
}

ncclResult_t talk(ncclComm* comm, const Talk& call, cudaStream_t stream) {
  if (comm->looks > 0 || comm->finalized) return ncclInvalidUsage;  // before the last call was taken up
  if (group_depth == 0 && call.message()) return ncclInvalidUsage;
  if (!comm->group.empty() && stream != comm->stream) return ncclInvalidUsage;
  comm->group.push_back(call);
  comm->stream = stream;
  if (group_depth > 0) {
    grouped = comm;
    return ncclSuccess;
  }
  return carry_out(*comm);
}

DType type_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
      return DType::float64;
    case ncclFloat16:
      return DType::float16;
    case ncclBfloat16:
      return DType::bfloat16;
    case ncclInt8:
      return DType::uint8;
    default:
      return DType::float32;
  }
}

std::byte* bytes_at(const void* data) { return static_cast<std::byte*>(const_cast<void*>(data)); }

Talk call(Talk::Kind kind, const void* data, std::size_t count, ncclDataType_t type, int peer = -1) {
  return {kind, bytes_at(data), static_cast<std::int64_t>(count), type_of(type), peer};
}

ncclResult_t all_reduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                        ncclComm_t comm, cudaStream_t stream) {
  if (from != to || op != ncclSum) return ncclInvalidArgument;
  return talk(comm, call(Talk::Kind::all_reduce, to, count, type), stream);
}
ncclResult_t reduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                    int root, ncclComm_t comm, cudaStream_t stream) {
  if (from != to || op != ncclSum) return ncclInvalidArgument;
  return talk(comm, call(Talk::Kind::reduce, to, count, type, root), stream);
}
ncclResult_t reduce_scatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const std::size_t part = count * bytes_of(type_of(type));
  if (bytes_at(to) != bytes_at(from) + part * static_cast<std::size_t>(comm->rank) || op != ncclSum)
    return ncclInvalidArgument;
  return talk(comm, call(Talk::Kind::reduce_scatter, from, count, type), stream);
}
ncclResult_t all_gather(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                        cudaStream_t stream) {
  const std::size_t part = count * bytes_of(type_of(type));
  if (bytes_at(from) != bytes_at(to) + part * static_cast<std::size_t>(comm->rank))
    return ncclInvalidArgument;
  return talk(comm, call(Talk::Kind::all_gather, to, count, type), stream);
}
ncclResult_t broadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                       ncclComm_t comm, cudaStream_t stream) {
  if (from != to) return ncclInvalidArgument;
  return talk(comm, call(Talk::Kind::broadcast, to, count, type, root), stream);
}
ncclResult_t send(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return talk(comm, call(Talk::Kind::send, data, count, type, peer), stream);
}
ncclResult_t receive(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                     cudaStream_t stream) {
  return talk(comm, call(Talk::Kind::receive, data, count, type, peer), stream);
}

ncclResult_t group_start() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t group_end() {
  --group_depth;
  ncclComm* const comm = grouped;
  grouped = nullptr;
  return comm ? carry_out(*comm) : ncclSuccess;  // it may be empty
}

/// What an ncclUniqueId holds here: the rank that made it, and how many it had made before.
struct Meeting {
  int root = 0, number = 0;
};

ncclResult_t get_unique_id(ncclUniqueId* id) {
  static int made = 0;
  Meeting meeting{0, made++};
  MPI_Comm_rank(MPI_COMM_WORLD, &meeting.root);
  std::memcpy(id->internal, &meeting, sizeof meeting);
  return ncclSuccess;
}

/// Ranks of MPI's world by rank of the new communicator. Nobody else takes part: other ranks make no call.
std::vector<int> members_of(const Meeting& meeting, int ranks, int rank) {
  std::array<int, 2> me{rank, 0};
  MPI_Comm_rank(MPI_COMM_WORLD, &me[1]);
  std::vector<int> members(static_cast<std::size_t>(ranks));
  const int tag = 1000 + meeting.number;
  if (me[1] != meeting.root) {
    MPI_Send(me.data(), 2, MPI_INT, meeting.root, tag, MPI_COMM_WORLD);
    MPI_Recv(members.data(), ranks, MPI_INT, meeting.root, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return members;
  }
  members.at(static_cast<std::size_t>(rank)) = me[1];
  for (int other = 1; other < ranks; ++other) {
    std::array<int, 2> member{};
    MPI_Recv(member.data(), 2, MPI_INT, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    members.at(static_cast<std::size_t>(member[0])) = member[1];
  }
  for (const int member : members) {
    if (member != meeting.root) MPI_Send(members.data(), ranks, MPI_INT, member, tag, MPI_COMM_WORLD);
  }
  return members;
}

ncclResult_t init(ncclComm_t* made, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;
  auto comm = std::make_unique<ncclComm>();
  Meeting meeting;
  std::memcpy(&meeting, id.internal, sizeof meeting);
  const std::vector<int> members = members_of(meeting, ranks, rank);
  MPI_Group world = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, ranks, members.data(), &group);
  MPI_Comm_create_group(MPI_COMM_WORLD, group, 1000 + meeting.number, &comm->mpi);
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  MPI_Comm_rank(comm->mpi, &comm->rank);
  MPI_Comm_size(comm->mpi, &comm->size);
  if (comm->rank != rank || comm->size != ranks) return ncclInternalError;
  *made = made_communicators.insert(std::move(comm)).first->get();
  char breaks_here = state.start_breaks, breaks = 0;
  MPI_Allreduce(&breaks_here, &breaks, 1, MPI_CHAR, MPI_MAX, (*made)->mpi);
  (*made)->looks = breaks ? std::numeric_limits<int>::max() : 3;
  return breaks_here ? ncclSystemError : ncclInProgress;
}
ncclResult_t get_async_error(ncclComm_t comm, ncclResult_t* error) {
  if (state.silent) ++state.asked;
  while (state.silent) std::this_thread::yield();
  *error = comm->looks > 0 ? ncclInProgress : ncclSuccess;
  if (comm->looks > 0) --comm->looks;
  return ncclSuccess;
}
ncclResult_t finalize(ncclComm_t comm) {
  if (comm->looks > 0 || comm->finalized) return ncclInvalidUsage;
  comm->finalized = true;
  comm->looks = 2;
  return ncclInProgress;
}
ncclResult_t destroy(ncclComm_t comm) {
  if (comm->looks > 0 || !comm->finalized || !comm->registered.empty()) std::abort();
  MPI_Comm_free(&comm->mpi);
  std::erase_if(made_communicators, [&](const auto& made) { return made.get() == comm; });
  return ncclSuccess;
}
ncclResult_t give_up(ncclComm_t) {
  ++state.aborted;
  return ncclSuccess;
}

ncclResult_t register_memory(ncclComm_t comm, void* memory, std::size_t bytes, void** handle) {
  if (state.register_breaks) return ncclSystemError;
  comm->registered[bytes_at(memory)] = bytes;
  *handle = memory;
  return ncclSuccess;
}
ncclResult_t deregister_memory(ncclComm_t comm, void* handle) {
  return comm->registered.erase(bytes_at(handle)) == 1 ? ncclSuccess : ncclInvalidUsage;
}
ncclResult_t allocate(void** memory, std::size_t bytes) {
  if (state.memory_breaks) return ncclUnhandledCudaError;
  if (cudaMalloc(memory, bytes) != cudaSuccess) return ncclUnhandledCudaError;
  ++state.memories;
  return ncclSuccess;
}
ncclResult_t release(void* memory) {
  --state.memories;
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

}  // namespace

lockstep::test::PretendedNccl& lockstep::test::pretended_nccl() { return state; }

namespace lockstep::comm {

decltype(&::ncclAllGather) ncclAllGather = all_gather;
decltype(&::ncclAllReduce) ncclAllReduce = all_reduce;
decltype(&::ncclBroadcast) ncclBroadcast = broadcast;
decltype(&::ncclCommAbort) ncclCommAbort = give_up;
decltype(&::ncclCommDeregister) ncclCommDeregister = deregister_memory;
decltype(&::ncclCommDestroy) ncclCommDestroy = destroy;
decltype(&::ncclCommFinalize) ncclCommFinalize = finalize;
decltype(&::ncclCommGetAsyncError) ncclCommGetAsyncError = get_async_error;
decltype(&::ncclCommInitRankConfig) ncclCommInitRankConfig = init;
decltype(&::ncclCommRegister) ncclCommRegister = register_memory;
decltype(&::ncclGetErrorString) ncclGetErrorString = [](ncclResult_t) {
  return "an error of the pretended NCCL";
};
decltype(&::ncclGetLastError) ncclGetLastError = [](ncclComm_t) { return "see pretended_nccl.cpp"; };
decltype(&::ncclGetUniqueId) ncclGetUniqueId = get_unique_id;
decltype(&::ncclGetVersion) ncclGetVersion = [](int*) { return ncclSuccess; };
decltype(&::ncclGroupEnd) ncclGroupEnd = group_end;
decltype(&::ncclGroupStart) ncclGroupStart = group_start;
decltype(&::ncclMemAlloc) ncclMemAlloc = allocate;
decltype(&::ncclMemFree) ncclMemFree = release;
decltype(&::ncclRecv) ncclRecv = receive;
decltype(&::ncclReduce) ncclReduce = reduce;
decltype(&::ncclReduceScatter) ncclReduceScatter = reduce_scatter;
decltype(&::ncclSend) ncclSend = send;

void load_nccl() {}

}  // namespace lockstep::comm
