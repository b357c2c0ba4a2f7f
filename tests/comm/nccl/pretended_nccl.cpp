// NCCL, by MPI and in the CPU's memory: a communicator that does not block, and refuses what NCCL leaves
// undefined.
#include <mpi.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "comm/nccl/library.h"
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

/// What one rank brings to a collective call, among all that it brings to the calls of the group.
struct Part {
  Talk talk;
  bool registered = false;
  std::size_t place = 0, bytes = 0;
};

/// All of a group in two messages: the calls of every rank, and what they are about.
void collectives(const ncclComm& comm) {
  std::vector<Part> mine;
  std::vector<std::byte> my_data;
  for (const Talk& talk : comm.group) {
    const bool of_parts = talk.kind == Talk::Kind::reduce_scatter || talk.kind == Talk::Kind::all_gather;
    const std::size_t bytes = static_cast<std::size_t>(talk.amount) * bytes_of(talk.dtype) *
                              static_cast<std::size_t>(of_parts ? comm.size : 1);
    mine.push_back({talk, registered(comm, talk.data), my_data.size(), bytes});
    my_data.insert(my_data.end(), talk.data, talk.data + bytes);
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
    std::memcpy(mine[call].talk.data, of_rank[static_cast<std::size_t>(comm.rank)]->data, mine[call].bytes);
  }
}

void messages(const ncclComm& comm) {
  std::vector<MPI_Request> requests;
  for (const Talk& talk : comm.group) {
    requests.emplace_back();
    const auto bytes = static_cast<int>(talk.amount);
    if (talk.kind == Talk::Kind::send) {
      const int tag = registered(comm, talk.data) ? 1 : 0;
      MPI_Isend(talk.data, bytes, MPI_BYTE, talk.peer, tag, comm.mpi, &requests.back());
    } else {
      MPI_Irecv(talk.data, bytes, MPI_BYTE, talk.peer, MPI_ANY_TAG, comm.mpi, &requests.back());
    }
  }
  std::vector<MPI_Status> statuses(requests.size());
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), statuses.data());
  for (std::size_t i = 0; i < statuses.size(); ++i) {
    if (comm.group[i].kind == Talk::Kind::receive)
      check_registration(registered(comm, comm.group[i].data), statuses[i].MPI_TAG == 1);
  }
}

/// A group holds messages or collective calls.
void carry_out(ncclComm& comm) {
  if (comm.group.front().message()) {
    messages(comm);
  } else {
    collectives(comm);
  }
  comm.group.clear();
  comm.looks = 2;
}

ncclResult_t talk(ncclComm* comm, const Talk& call) {
  if (comm->looks > 0 || comm->finalized) return ncclInvalidUsage;  // before the last call was taken up
  if (group_depth == 0 && call.message()) return ncclInvalidUsage;
  comm->group.push_back(call);
  if (group_depth > 0) {
    grouped = comm;
    return ncclSuccess;
  }
  carry_out(*comm);
  return ncclInProgress;
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
                        ncclComm_t comm, cudaStream_t) {
  if (from != to || op != ncclSum) return ncclInvalidArgument;
  return talk(comm, call(Talk::Kind::all_reduce, to, count, type));
}
ncclResult_t reduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                    int root, ncclComm_t comm, cudaStream_t) {
  if (from != to || op != ncclSum) return ncclInvalidArgument;
  return talk(comm, call(Talk::Kind::reduce, to, count, type, root));
}
ncclResult_t reduce_scatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t) {
  const std::size_t part = count * bytes_of(type_of(type));
  if (bytes_at(to) != bytes_at(from) + part * static_cast<std::size_t>(comm->rank) || op != ncclSum)
    return ncclInvalidArgument;
  return talk(comm, call(Talk::Kind::reduce_scatter, from, count, type));
}
ncclResult_t all_gather(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                        cudaStream_t) {
  const std::size_t part = count * bytes_of(type_of(type));
  if (bytes_at(from) != bytes_at(to) + part * static_cast<std::size_t>(comm->rank))
    return ncclInvalidArgument;
  return talk(comm, call(Talk::Kind::all_gather, to, count, type));
}
ncclResult_t broadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                       ncclComm_t comm, cudaStream_t) {
  if (from != to) return ncclInvalidArgument;
  return talk(comm, call(Talk::Kind::broadcast, to, count, type, root));
}
ncclResult_t send(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t) {
  return talk(comm, call(Talk::Kind::send, data, count, type, peer));
}
ncclResult_t receive(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                     cudaStream_t) {
  return talk(comm, call(Talk::Kind::receive, data, count, type, peer));
}

ncclResult_t group_start() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t group_end() {
  --group_depth;
  ncclComm* const comm = grouped;
  grouped = nullptr;
  if (!comm) return ncclSuccess;  // an empty one
  carry_out(*comm);
  return ncclInProgress;
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
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  std::memset(*memory, 0xab, bytes);
  ++state.memories;
  return ncclSuccess;
}
ncclResult_t release(void* memory) {
  --state.memories;
  std::free(memory);
  return ncclSuccess;
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
