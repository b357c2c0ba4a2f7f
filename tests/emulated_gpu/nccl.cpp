// NCCL of the emulated GPU, by MPI and in the CPU's memory: a communicator that does not block, and refuses
// what NCCL leaves undefined.
//
// Its stream is brought as far as the call, ranks exchange what is there then, and results are written when
// the stream comes to it: the earliest that NCCL may read, and the latest that it may write. What has changed
// in between would have been sent now and then, and ends the program. So MPI is called where NCCL is, by the
// one thread that may, whichever thread carries out the stream's work.
//
// A call returns before it is taken up: a thread of NCCL's own brings it into the stream, or the capture,
// later. Here that is when the caller has asked often enough for the communicator's state, which is then
// success: what anybody asked of the stream before then is not behind the call.
#include "emulated_gpu/nccl.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "comm/nccl/connection.h"
#include "emulated_gpu/capture.h"
#include "emulated_gpu/library_memory.h"
#include "emulated_gpu/runtime.h"
#include "emulated_gpu/streams.h"
#include "lockstep/tensor/dtype.h"

namespace lockstep::emulated_gpu {
namespace {

enum class Kind { all_reduce, reduce_scatter, reduce, all_gather, broadcast, send, receive };
constexpr std::array kind_names{"all_reduce", "reduce_scatter", "reduce", "all_gather",
                                "broadcast",  "send",           "receive"};

/// What ranks say of a call: in a collective one all the same.
struct Meaning {
  Kind kind{};
  ncclDataType_t type = ncclInt8;
  std::size_t count = 0;
  int peer = -1;  ///< or root
  int registered = 0;
  bool operator==(const Meaning&) const = default;
};

/// Of a call's memory, in bytes.
struct Piece {
  std::size_t first = 0, bytes = 0;
};

struct Call {
  bool message() const { return meaning.kind == Kind::send || meaning.kind == Kind::receive; }

  Meaning meaning;
  std::byte* data = nullptr;
  Piece whole = {}, read = {}, written = {};       ///< on this rank
  std::vector<std::byte> before = {}, after = {};  ///< the whole
};

}  // namespace
}  // namespace lockstep::emulated_gpu

using lockstep::emulated_gpu::Call;

struct ncclComm {
  MPI_Comm mpi = MPI_COMM_NULL;
  int rank = 0, size = 1;
  int device = lockstep::emulated_gpu::current_device();
  int looks = 0;           ///< of its caller, until the last call is taken up
  std::thread::id caller;  ///< of the last call
  ncclResult_t state = ncclSuccess;
  bool finalized = false;
  std::vector<Call> group;                                   ///< under way, or not taken up
  cudaStream_t stream = nullptr;                             ///< the group's
  const lockstep::emulated_gpu::Capture* capture = nullptr;  ///< of the stream
  std::map<const std::byte*, std::size_t> registered;        ///< bytes by first
};

namespace lockstep::emulated_gpu {
namespace {

/// Those that were given up, too: who is still inside one may come back.
std::set<std::unique_ptr<ncclComm>> made_communicators;

int group_depth = 0;
ncclComm* grouped = nullptr;

std::size_t bytes_of(ncclDataType_t type) {
  return type == ncclFloat64 ? 8u : type == ncclFloat32 ? 4u : type == ncclInt8 ? 1u : 2u;
}

double value_at(const std::byte* data, std::size_t index, ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
      return stored_at<double>(data, index);
    case ncclFloat32:
      return stored_at<float>(data, index);
    case ncclBfloat16:
      return from_bfloat16_bits(stored_at<std::uint16_t>(data, index));
    case ncclFloat16:
      return from_float16_bits(stored_at<std::uint16_t>(data, index));
    default:
      refuse("NCCL: a sum of bytes");
  }
}

void store_value(std::byte* data, std::size_t index, ncclDataType_t type, double value) {
  const auto single = static_cast<float>(value);
  if (type == ncclFloat64) return store_at(data, index, value);
  if (type == ncclFloat32) return store_at(data, index, single);
  store_at(data, index, type == ncclBfloat16 ? bfloat16_bits(single) : float16_bits(single));
}

/// Sums in an order of its own, as NCCL's: from the last rank to the first.
void add(const std::vector<const std::byte*>& ranks, Call& call) {
  const ncclDataType_t type = call.meaning.type;
  const std::size_t first = call.written.first / bytes_of(type);
  for (std::size_t i = first; i < first + call.written.bytes / bytes_of(type); ++i) {
    double sum = 0;
    for (auto rank = ranks.rbegin(); rank != ranks.rend(); ++rank) {
      sum += value_at(*rank, i, type);
      if (type != ncclFloat64) sum = static_cast<float>(sum);
    }
    store_value(call.after.data(), i, type, sum);
  }
}

/// What a collective call gives of what the ranks have.
void carry_out(const std::vector<const std::byte*>& ranks, Call& call) {
  call.after.resize(call.whole.bytes);
  if (call.meaning.kind == Kind::broadcast) {
    std::memcpy(call.after.data(), ranks[static_cast<std::size_t>(call.meaning.peer)], call.whole.bytes);
  } else if (call.meaning.kind == Kind::all_gather) {
    for (std::size_t rank = 0, place = 0; rank < ranks.size(); ++rank, place += call.meaning.count)
      std::memcpy(call.after.data() + place, ranks[rank] + place, call.meaning.count);
  } else {
    add(ranks, call);
  }
}

/// All of a group in two messages: the calls of every rank, and what they are about.
void collectives(const ncclComm& comm, std::vector<Call>& calls) {
  std::vector<Meaning> mine;
  std::vector<std::byte> my_data;
  for (const Call& call : calls) {
    mine.push_back(call.meaning);
    my_data.insert(my_data.end(), call.before.begin(), call.before.end());
  }
  const auto ranks = static_cast<std::size_t>(comm.size);
  std::vector<Meaning> meanings(ranks * mine.size());
  std::vector<std::byte> data(ranks * my_data.size());
  const auto bytes = static_cast<int>(mine.size() * sizeof(Meaning)),
             data_bytes = static_cast<int>(my_data.size());
  MPI_Allgather(mine.data(), bytes, MPI_BYTE, meanings.data(), bytes, MPI_BYTE, comm.mpi);
  for (std::size_t i = 0; i < meanings.size(); ++i) {
    const Meaning &here = mine[i % mine.size()], &there = meanings[i];
    if (here.registered != there.registered) refuse("NCCL: registered memory meets memory that is not");
    if (here != there) refuse("NCCL: ranks make different collective calls");
  }
  MPI_Allgather(my_data.data(), data_bytes, MPI_BYTE, data.data(), data_bytes, MPI_BYTE, comm.mpi);
  std::size_t place = 0;
  for (Call& call : calls) {
    std::vector<const std::byte*> of_rank;
    for (std::size_t rank = 0; rank < ranks; ++rank)
      of_rank.push_back(data.data() + rank * my_data.size() + place);
    carry_out(of_rank, call);
    place += call.whole.bytes;
  }
}

/// Messages of a group travel at once: no two may arrive at one place, nor where one is being sent from.
void check_apart(const std::vector<Call>& calls) {
  std::vector<const Call*> in_order;
  for (const Call& call : calls) {
    if (call.whole.bytes > 0) in_order.push_back(&call);
  }
  std::ranges::sort(in_order, {}, &Call::data);
  const Call *reaches = nullptr, *arrives = nullptr;  // furthest so far
  const auto end = [](const Call* call) { return call->data + call->whole.bytes; };
  for (const Call* const call : in_order) {
    const bool arriving = call->meaning.kind == Kind::receive;
    const Call* const other = arriving ? reaches : arrives;
    if (other && call->data < end(other)) refuse("NCCL: a message to a place that another one uses");
    if (!reaches || end(call) > end(reaches)) reaches = call;
    if (arriving && (!arrives || end(call) > end(arrives))) arrives = call;
  }
}

void messages(const ncclComm& comm, std::vector<Call>& calls) {
  check_apart(calls);
  std::vector<MPI_Request> requests(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    Call& call = calls[i];
    const auto bytes = static_cast<int>(call.whole.bytes);
    const auto& [kind, type, count, peer, registered] = call.meaning;
    if (peer == comm.rank) refuse("NCCL: a message to the rank itself");
    if (kind == Kind::send) {
      MPI_Isend(call.before.data(), bytes, MPI_BYTE, peer, registered, comm.mpi, &requests[i]);
    } else {
      call.after.resize(call.whole.bytes);
      MPI_Irecv(call.after.data(), bytes, MPI_BYTE, peer, MPI_ANY_TAG, comm.mpi, &requests[i]);
    }
  }
  std::vector<MPI_Status> statuses(calls.size());
  MPI_Waitall(static_cast<int>(calls.size()), requests.data(), statuses.data());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].meaning.kind != Kind::receive) continue;
    int bytes = 0;
    MPI_Get_count(&statuses[i], MPI_BYTE, &bytes);
    if (static_cast<std::size_t>(bytes) != calls[i].whole.bytes) refuse("NCCL: a message of another size");
    if (statuses[i].MPI_TAG != calls[i].meaning.registered)
      refuse("NCCL: registered memory meets memory that is not");
  }
}

/// When the stream comes to it.
void write_results(const std::vector<Call>& calls) {
  for (const Call& call : calls) {
    const std::size_t first = call.read.first;
    if (call.read.bytes > 0 &&
        std::memcmp(call.data + first, call.before.data() + first, call.read.bytes) != 0)
      refuse("NCCL: what was being sent has changed: a stream has not waited");
  }
  for (const Call& call : calls) {
    const std::size_t first = call.written.first;
    if (call.written.bytes > 0) std::memcpy(call.data + first, call.after.data() + first, call.written.bytes);
  }
}

/// When the stream has come to the calls.
void read_operands(const ncclComm& comm, std::vector<Call>& calls, cudaStream_t stream) {
  if (cudaStreamSynchronize(stream) != cudaSuccess)
    refuse("NCCL: its stream cannot be brought up to the call");
  for (Call& call : calls) {
    if (call.whole.bytes > 0 && freed(call.data, call.whole.bytes))
      refuse("NCCL: a call in memory that was freed");
    if (out_of_reach(call.data, comm.device)) refuse("NCCL: a call in the memory of another device");
    call.before.assign(call.data, call.data + call.whole.bytes);
    const auto next = comm.registered.upper_bound(call.data);
    call.meaning.registered =
        next != comm.registered.begin() && call.data < std::prev(next)->first + std::prev(next)->second;
  }
}

/// A group holds messages or collective calls.
void meet_ranks(const ncclComm& comm, std::vector<Call>& calls) {
  const auto messages_in_it = std::ranges::count_if(calls, &Call::message);
  if (messages_in_it != 0 && messages_in_it != std::ssize(calls))
    refuse("NCCL: messages and collective calls in one group");
  messages_in_it > 0 ? messages(comm, calls) : collectives(comm, calls);
}

void enqueue_results(std::vector<Call> calls, cudaStream_t stream) {
  enqueue(stream, [calls = std::move(calls)] { write_results(calls); });
}

/// On a thread of NCCL's, whose device is the communicator's, and which is in no capture.
template <class Part>
void on_own_thread(const ncclComm& comm, const Part& part) {
  std::thread([&] {
    cudaSetDevice(comm.device);
    part();
  }).join();
}

const Capture* capture_around(cudaStream_t stream) {
  const Turn turn = take_turn();
  return capture_of(stream);
}

/// Where the stream is captured, each launch of the graph makes the calls: of all ranks at once.
ncclResult_t take_up(ncclComm& comm) {
  std::vector<Call> calls = std::exchange(comm.group, {});
  if (calls.empty()) return ncclSuccess;  // of another kind
  if (capture_around(comm.stream) != comm.capture) return ncclUnhandledCudaError;
  if (comm.capture) {
    on_own_thread(comm, [&] {
      call_for(comm.stream, [&comm, calls](cudaStream_t stream) {
        std::vector<Call> made = calls;
        read_operands(comm, made, stream);
        meet_ranks(comm, made);
        enqueue_results(std::move(made), stream);
      });
    });
    return ncclSuccess;
  }
  on_own_thread(comm, [&] { read_operands(comm, calls, comm.stream); });
  meet_ranks(comm, calls);
  on_own_thread(comm, [&] { enqueue_results(std::move(calls), comm.stream); });
  return ncclSuccess;
}

/// It is in progress: its caller asks so often before it is taken up.
ncclResult_t begin_progress(ncclComm& comm, int looks) {
  comm.looks = looks;
  comm.caller = std::this_thread::get_id();
  return ncclInProgress;
}

ncclResult_t end_calls(ncclComm& comm) {
  constexpr std::size_t max_in_group = 1024;  // NCCL keeps 2048 apart
  if (comm.group.size() > max_in_group) refuse("NCCL: more calls in a group than it keeps apart");
  if (nccl().noting) {
    for (const Call& call : comm.group)
      nccl().noted += std::string(kind_names[static_cast<std::size_t>(call.meaning.kind)]) + " ";
    nccl().noted += "| ";
  }
  comm.capture = capture_around(comm.stream);
  return begin_progress(comm, 3);
}

Call call_of(const ncclComm& comm, Kind kind, const void* data, std::size_t count, ncclDataType_t type,
             int peer) {
  const std::size_t bytes = count * bytes_of(type);
  const auto rank = static_cast<std::size_t>(comm.rank), ranks = static_cast<std::size_t>(comm.size);
  const Piece all{0, bytes}, of_all{0, bytes * ranks}, own{bytes * rank, bytes}, none;
  const bool root = peer == comm.rank;
  Call call{{kind, type, count, peer}, static_cast<std::byte*>(const_cast<void*>(data)), all, all, all};
  if (kind == Kind::reduce_scatter || kind == Kind::all_gather)
    call.whole = call.read = call.written = of_all;
  if (kind == Kind::reduce_scatter) call.written = own;
  if (kind == Kind::all_gather) call.read = own;
  if (kind == Kind::receive || (kind == Kind::broadcast && !root)) call.read = none;
  if (kind == Kind::send || (kind == Kind::broadcast && root) || (kind == Kind::reduce && !root))
    call.written = none;
  return call;
}

/// peer: or the root. data: of all ranks, in the calls that divide it among them.
ncclResult_t take(ncclComm* comm, cudaStream_t stream, Kind kind, const void* data, std::size_t count,
                  ncclDataType_t type, int peer = -1) {
  Call call = call_of(*comm, kind, data, count, type, peer);
  if (comm->looks > 0 || comm->finalized) return ncclInvalidUsage;  // before the last call was taken up
  if (group_depth == 0 && call.message()) return ncclInvalidUsage;
  if (!comm->group.empty() && stream != comm->stream) return ncclInvalidUsage;
  if (device_of(stream) != comm->device) return ncclUnhandledCudaError;
  comm->group.push_back(std::move(call));
  comm->stream = stream;
  if (group_depth == 0) return end_calls(*comm);
  grouped = comm;
  return ncclSuccess;
}

bool own_part(const void* part, const void* all, std::size_t count, ncclDataType_t type,
              const ncclComm* comm) {
  const std::size_t before = count * bytes_of(type) * static_cast<std::size_t>(comm->rank);
  return part == static_cast<const std::byte*>(all) + before;
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  if (from != to || op != ncclSum) return ncclInvalidArgument;
  return take(comm, stream, Kind::all_reduce, to, count, type);
}
ncclResult_t ncclReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                        int root, ncclComm_t comm, cudaStream_t stream) {
  if (from != to || op != ncclSum) return ncclInvalidArgument;
  return take(comm, stream, Kind::reduce, to, count, type, root);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  if (!own_part(to, from, count, type, comm) || op != ncclSum) return ncclInvalidArgument;
  return take(comm, stream, Kind::reduce_scatter, from, count, type);
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  if (!own_part(from, to, count, type, comm) || type != ncclInt8) return ncclInvalidArgument;
  return take(comm, stream, Kind::all_gather, to, count, type);
}
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  if (from != to) return ncclInvalidArgument;
  return take(comm, stream, Kind::broadcast, to, count, type, root);
}
ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return take(comm, stream, Kind::send, data, count, type, peer);
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return take(comm, stream, Kind::receive, data, count, type, peer);
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  --group_depth;
  ncclComm* const comm = std::exchange(grouped, nullptr);
  return comm ? end_calls(*comm) : ncclSuccess;  // it may be empty
}

/// What an ncclUniqueId holds here: the rank that made it, and how many it had made before.
struct Meeting {
  int root = 0, number = 0;
};

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
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

ncclResult_t ncclCommInitRankConfig(ncclComm_t* made, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
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
  char breaks_here = nccl().start_breaks, breaks = 0;
  MPI_Allreduce(&breaks_here, &breaks, 1, MPI_CHAR, MPI_MAX, (*made)->mpi);
  begin_progress(**made, breaks ? std::numeric_limits<int>::max() : 4);
  return breaks_here ? ncclSystemError : ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  if (nccl().silent) ++nccl().asked;
  while (nccl().silent) std::this_thread::yield();
  if (comm->looks > 0 && comm->caller == std::this_thread::get_id() && --comm->looks == 0)
    comm->state = take_up(*comm);
  *error = comm->looks > 0 ? ncclInProgress : comm->state;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (comm->looks > 0 || comm->finalized) return ncclInvalidUsage;
  comm->finalized = true;
  return begin_progress(*comm, 3);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  int left = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm->mpi, &left, MPI_STATUS_IGNORE);
  if (left) refuse("NCCL: a message that nobody has awaited");
  if (comm->looks > 0 || !comm->finalized || !comm->registered.empty())
    refuse("NCCL: a communicator that goes while it is in use");
  MPI_Comm_free(&comm->mpi);
  std::erase_if(made_communicators, [&](const auto& made) { return made.get() == comm; });
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t) {
  ++nccl().aborted;
  return ncclSuccess;
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* memory, std::size_t bytes, void** handle) {
  if (nccl().register_breaks) return ncclSystemError;
  if (comm->looks > 0 || out_of_reach(memory, comm->device)) return ncclInvalidUsage;
  comm->registered[static_cast<std::byte*>(memory)] = bytes;
  *handle = memory;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  if (comm->looks > 0) return ncclInvalidUsage;
  return comm->registered.erase(static_cast<std::byte*>(handle)) == 1 ? ncclSuccess : ncclInvalidUsage;
}
ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  if (nccl().memory_breaks) return ncclUnhandledCudaError;
  if (cudaMalloc(memory, bytes) != cudaSuccess) return ncclUnhandledCudaError;
  ++nccl().memories;
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* memory) {
  --nccl().memories;
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

ncclResult_t ncclGetVersion(int*) { return ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t) { return "an error of the emulated NCCL"; }
const char* ncclGetLastError(ncclComm_t) { return "see tests/emulated_gpu/nccl.cpp"; }

}  // namespace

Nccl& nccl() {
  static Nccl made;
  return made;
}

}  // namespace lockstep::emulated_gpu

// These replace the definitions of src/comm/nccl/connection.cpp: the library is there from the start.
namespace lockstep::comm {

#define LOCKSTEP_LATE_FUNCTION(name) decltype(&::name) name = &emulated_gpu::name;
LOCKSTEP_NCCL_FUNCTIONS(LOCKSTEP_LATE_FUNCTION)
#undef LOCKSTEP_LATE_FUNCTION

void load_nccl() {}

}  // namespace lockstep::comm
