// How the emulated GPU carries kernels out. Compiled for the CPU only.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <csignal>
#include <numeric>
#include <vector>

#include "emulated_gpu/races.h"

namespace {

using lockstep::emulated_gpu::races;

constexpr int block = 64;

/// The stream on which a test's kernels run; what they did is there when it returns.
struct Stream {
  Stream() { cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }
  ~Stream() { cudaStreamDestroy(stream); }
  void finish() { cudaStreamSynchronize(stream); }
  cudaStream_t stream = nullptr;
};

/// Until it goes, a race does not end the program.
struct RacesAreCounted {
  RacesAreCounted() { races().count_only(true); }
  ~RacesAreCounted() {
    races().count_only(false);
    races().take_count();
  }
};

__global__ void count_visits(int* visits) {
  const dim3 &threads = blockDim, &blocks = gridDim;
  const unsigned in_block = threadIdx.x + threads.x * (threadIdx.y + threads.y * threadIdx.z);
  const unsigned number = blockIdx.x + blocks.x * (blockIdx.y + blocks.y * blockIdx.z);
  ++visits[number * threads.x * threads.y * threads.z + in_block];
}

__global__ void sum_warps(const int* from, int* sums) {
  int x = from[threadIdx.x];
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  sums[threadIdx.x] = x;
}

__global__ void take_lane(const double* from, int lane, double* to) {
  to[threadIdx.x] = __shfl_sync(0xffffffffu, from[threadIdx.x], lane);
}

/// Each thread takes what the one at the other end of the block has put down.
template <bool Barrier>
__global__ void reverse(int* values) {
  __shared__ int room[block];
  int* const mine = values + blockIdx.x * block;
  room[threadIdx.x] = mine[threadIdx.x];
  if (Barrier) __syncthreads();
  mine[threadIdx.x] = room[block - 1 - threadIdx.x];
}

/// The same within a warp.
template <bool Barrier>
__global__ void reverse_warps(int* values) {
  __shared__ int room[block];
  room[threadIdx.x] = values[threadIdx.x];
  if (Barrier) __syncwarp();
  values[threadIdx.x] = room[threadIdx.x ^ 31];
}

/// Rounds of a sum over the block by one room. `Barrier`: behind the reads of each round, too.
template <bool Barrier>
__global__ void sum_rounds(int rounds, int* sums) {
  __shared__ int room[block];
  for (int round = 0; round < rounds; ++round) {
    room[threadIdx.x] = round;
    __syncthreads();
    int sum = 0;
    for (int i = 0; i < block; ++i) sum += room[i];
    sums[round * block + static_cast<int>(threadIdx.x)] = sum;
    if (Barrier) __syncthreads();
  }
}

__device__ unsigned thread_of_launch() { return blockIdx.x * blockDim.x + threadIdx.x; }

__global__ void look_at_shared(float* found) {
  extern __shared__ float room[];
  found[thread_of_launch()] = room[threadIdx.x];
  room[threadIdx.x] = 1;
}

__global__ void look_at_fixed_shared(float* found) {
  __shared__ float room[block], other[2][block];
  found[2 * thread_of_launch()] = room[threadIdx.x];
  found[2 * thread_of_launch() + 1] = other[1][threadIdx.x];
  room[threadIdx.x] = other[1][threadIdx.x] = 1;
}

__global__ void number_blocks(int* next, int* order) { order[(*next)++] = static_cast<int>(blockIdx.x); }

/// Each block adds to what the one before it has left.
__global__ void add_to_neighbour(const int* from, int* to) { to[blockIdx.x + 1] = from[blockIdx.x] + 1; }

/// Of more than a page of those that races are kept in.
struct Large {
  int values[10000];
};
__global__ void copy_whole(const Large* from, Large* to) { *to = *from; }

__global__ void store_in_all(int* to) { *to = static_cast<int>(blockIdx.x); }

/// Bytes side by side.
__global__ void store_own(char* to) { to[blockIdx.x] = static_cast<char>(blockIdx.x + to[blockIdx.x]); }

__global__ void store(int value, int* to) { *to = value; }

__global__ void meet_unless(unsigned thread) {
  if (threadIdx.x != thread) __syncthreads();
}

__global__ void exchange_in_half_a_warp() {
  if (threadIdx.x < 16) __shfl_sync(0xffffffffu, 1, 0);
}

/// The signal that ends a process which does this.
template <class Work>
int ending_of(const Work& work) {
  const pid_t child = fork();
  if (child == 0) {
    std::signal(SIGABRT, SIG_DFL);
    freopen("/dev/null", "w", stderr);
    work();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

bool reversed_right(bool barrier) {
  Stream on;
  std::vector<int> values(8 * block);
  std::iota(values.begin(), values.end(), 0);
  if (barrier) {
    reverse<true><<<8, block, 0, on.stream>>>(values.data());
  } else {
    reverse<false><<<8, block, 0, on.stream>>>(values.data());
  }
  on.finish();
  for (int i = 0; i < 8 * block; ++i) {
    if (values[static_cast<std::size_t>(i)] != i / block * block + block - 1 - i % block) return false;
  }
  return true;
}

bool warps_reversed(bool barrier) {
  Stream on;
  std::vector<int> values(block);
  std::iota(values.begin(), values.end(), 0);
  if (barrier) {
    reverse_warps<true><<<1, block, 0, on.stream>>>(values.data());
  } else {
    reverse_warps<false><<<1, block, 0, on.stream>>>(values.data());
  }
  on.finish();
  for (int i = 0; i < block; ++i) {
    if (values[static_cast<std::size_t>(i)] != (i ^ 31)) return false;
  }
  return true;
}

bool rounds_right(bool barrier) {
  Stream on;
  constexpr int rounds = 4;
  std::vector<int> sums(rounds * block, -1);
  if (barrier) {
    sum_rounds<true><<<1, block, 0, on.stream>>>(rounds, sums.data());
  } else {
    sum_rounds<false><<<1, block, 0, on.stream>>>(rounds, sums.data());
  }
  on.finish();
  for (int i = 0; i < rounds * block; ++i) {
    if (sums[static_cast<std::size_t>(i)] != i / block * block) return false;
  }
  return true;
}

BOOST_AUTO_TEST_CASE(every_thread_of_every_block_runs_once) {
  Stream on;
  std::vector<int> visits(5 * 2 * 3 * 8 * 4 * 2);
  count_visits<<<dim3(5, 2, 3), dim3(8, 4, 2), 0, on.stream>>>(visits.data());
  on.finish();
  BOOST_TEST(std::ranges::count(visits, 1) == std::ssize(visits));
}

BOOST_AUTO_TEST_CASE(lanes_of_a_warp_exchange_values) {
  Stream on;
  std::vector<int> from(block), sums(block);
  std::iota(from.begin(), from.end(), 0);
  sum_warps<<<1, block, 0, on.stream>>>(from.data(), sums.data());
  std::vector<double> numbers(block), taken(block);
  std::iota(numbers.begin(), numbers.end(), 0.5);
  take_lane<<<1, block, 0, on.stream>>>(numbers.data(), 7, taken.data());
  on.finish();
  for (std::size_t i = 0; i < block; ++i) {
    BOOST_TEST(sums[i] == (i < 32 ? 31 * 32 / 2 : 31 * 32 / 2 + 32 * 32));
    BOOST_TEST(taken[i] == (i < 32 ? 7.5 : 39.5));
  }
}

BOOST_AUTO_TEST_CASE(a_barrier_of_a_warp_has_its_lanes_wait_for_each_other) {
  BOOST_TEST(warps_reversed(true));
}
BOOST_AUTO_TEST_CASE(a_missing_barrier_of_a_warp_shows) { BOOST_TEST(!warps_reversed(false)); }
BOOST_AUTO_TEST_CASE(a_barrier_has_all_threads_wait_for_each_other) { BOOST_TEST(reversed_right(true)); }
BOOST_AUTO_TEST_CASE(a_missing_barrier_before_reads_shows) { BOOST_TEST(!reversed_right(false)); }
BOOST_AUTO_TEST_CASE(rounds_with_barriers_do_not_mix) { BOOST_TEST(rounds_right(true)); }
BOOST_AUTO_TEST_CASE(a_missing_barrier_behind_reads_shows) { BOOST_TEST(!rounds_right(false)); }

BOOST_AUTO_TEST_CASE(shared_memory_is_new_to_every_block) {
  Stream on;
  std::vector<float> found(4 * block);
  look_at_shared<<<4, block, block * sizeof(float), on.stream>>>(found.data());
  on.finish();
  BOOST_TEST(std::ranges::all_of(found, [](float x) { return std::isnan(x); }));
}

BOOST_AUTO_TEST_CASE(shared_memory_of_a_fixed_size_is_new_to_every_block) {
  Stream on;
  std::vector<float> found(4 * 2 * block);
  look_at_fixed_shared<<<4, block, 0, on.stream>>>(found.data());
  on.finish();
  BOOST_TEST(std::ranges::all_of(found, [](float x) { return std::isnan(x); }));
}

BOOST_AUTO_TEST_CASE(more_than_48_kib_of_shared_memory_are_asked_for_first) {
  Stream on;
  std::vector<float> found(block);
  const auto launch_with = [&](int bytes) {
    look_at_shared<<<1, block, bytes, on.stream>>>(found.data());
    on.finish();
    return cudaGetLastError();
  };
  const auto allow = [](int bytes) {
    return cudaFuncSetAttribute(look_at_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  BOOST_TEST(launch_with(48 * 1024) == cudaSuccess);
  BOOST_TEST(launch_with(48 * 1024 + 4) == cudaErrorInvalidValue);
  BOOST_TEST(allow(228 * 1024) == cudaErrorInvalidValue);
  BOOST_TEST(cudaGetLastError() == cudaErrorInvalidValue);
  BOOST_TEST(allow(64 * 1024) == cudaSuccess);
  BOOST_TEST(launch_with(64 * 1024) == cudaSuccess);
  BOOST_TEST(launch_with(64 * 1024 + 4) == cudaErrorInvalidValue);
}

BOOST_AUTO_TEST_CASE(blocks_run_in_an_order_that_is_drawn) {
  const RacesAreCounted racing;  // for a number
  const auto order = [] {
    Stream on;
    int next = 0;
    std::vector<int> found(32);
    number_blocks<<<32, 1, 0, on.stream>>>(&next, found.data());
    on.finish();
    return found;
  };
  const std::vector<int> first = order(), second = order();
  BOOST_TEST(!std::ranges::is_sorted(first));
  BOOST_TEST((first != second));
  std::vector<int> sorted = first;
  std::ranges::sort(sorted);
  BOOST_TEST((std::ranges::adjacent_find(sorted) == sorted.end()));
}

BOOST_AUTO_TEST_CASE(blocks_that_depend_on_each_other_are_found) {
  const bool before = races().checks();
  races().check(true);
  const RacesAreCounted meanwhile;
  std::vector<int> numbers(9);
  std::vector<char> bytes(8);
  const auto found = [&](const auto& launch) {
    races().take_count();
    Stream on;
    launch(on.stream);
    on.finish();
    return races().take_count();
  };
  const int alone = found([&](auto on) { store_own<<<8, 1, 0, on>>>(bytes.data()); });
  if (races().sees_accesses()) {  // a build with LOCKSTEP_EMULATED_RACES
    BOOST_TEST(alone == 0);       // bytes of one word
    BOOST_TEST(found([&](auto on) { add_to_neighbour<<<8, 1, 0, on>>>(numbers.data(), numbers.data()); }) >
               0);
    BOOST_TEST(found([&](auto on) { store_in_all<<<8, 1, 0, on>>>(numbers.data()); }) > 0);
    BOOST_TEST(found([&](auto on) { store_in_all<<<1, 8, 0, on>>>(numbers.data()); }) == 0);
    std::vector<Large> larges(2);
    const auto copy = [&](int blocks, int threads) {
      return found([&](auto on) { copy_whole<<<blocks, threads, 0, on>>>(&larges[0], &larges[1]); });
    };
    BOOST_TEST(copy(1, 8) == 0);
    BOOST_TEST(copy(8, 1) > 0);
  }
  races().check(before);
}

BOOST_AUTO_TEST_CASE(arguments_are_those_of_the_launch) {
  Stream on;
  std::vector<int> found(3);
  for (int i = 0; i < 3; ++i) store<<<1, 1, 0, on.stream>>>(i, found.data() + i);
  on.finish();
  BOOST_TEST(found == (std::vector{0, 1, 2}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(an_operand_that_was_freed_ends_the_program) {
  const auto store_in = [](bool freed) {
    Stream on;
    int* values = nullptr;
    cudaMallocAsync(reinterpret_cast<void**>(&values), sizeof(int), on.stream);
    if (freed) cudaFreeAsync(values, on.stream);
    store<<<1, 1, 0, on.stream>>>(1, values);
    on.finish();
  };
  BOOST_TEST(ending_of([&] { store_in(true); }) == SIGABRT);
  BOOST_TEST(ending_of([&] { store_in(false); }) == 0);
}

struct Place {
  int number;
  int* values;
};

__global__ void store_at(Place place) { place.values[place.number] = 1; }

/// The memory of one device, used by a kernel in a stream of another or of the same.
void store_across(int of_memory, int of_stream, bool in_structure) {
  int* values = nullptr;
  cudaSetDevice(of_memory);
  cudaMalloc(reinterpret_cast<void**>(&values), sizeof(int));
  cudaSetDevice(of_stream);
  Stream on;
  if (in_structure) {
    store_at<<<1, 1, 0, on.stream>>>(Place{0, values});
  } else {
    store<<<1, 1, 0, on.stream>>>(1, values);
  }
  on.finish();
}

BOOST_AUTO_TEST_CASE(an_operand_of_another_device_ends_the_program) {
  for (const bool in_structure : {false, true}) {
    if (in_structure && !lockstep::emulated_gpu::MayHoldAddresses<Place>) continue;
    BOOST_TEST(ending_of([&] { store_across(0, 1, in_structure); }) == SIGABRT);
    BOOST_TEST(ending_of([&] { store_across(1, 0, in_structure); }) == SIGABRT);
    BOOST_TEST(ending_of([&] { store_across(1, 1, in_structure); }) == 0);
  }
}

BOOST_AUTO_TEST_CASE(a_kernel_is_launched_into_streams_of_the_current_device_only) {
  Stream on;
  int stored = 0;
  cudaSetDevice(1);
  store<<<1, 1, 0, on.stream>>>(1, &stored);
  BOOST_TEST(cudaGetLastError() == cudaErrorInvalidResourceHandle);
  cudaSetDevice(0);
  on.finish();
  BOOST_TEST(stored == 0);
  store<<<1, 1, 0, on.stream>>>(1, &stored);
  BOOST_TEST(cudaGetLastError() == cudaSuccess);
  on.finish();
  BOOST_TEST(stored == 1);
}

BOOST_AUTO_TEST_CASE(what_a_gpu_leaves_undefined_ends_the_program) {
  BOOST_TEST(ending_of([] {
               Stream on;
               meet_unless<<<1, block, 0, on.stream>>>(5);
               on.finish();
             }) == SIGABRT);
  BOOST_TEST(ending_of([] {
               Stream on;
               exchange_in_half_a_warp<<<1, block, 0, on.stream>>>();
               on.finish();
             }) == SIGABRT);
  BOOST_TEST(ending_of([] {
               Stream on;
               meet_unless<<<1, 2048, 0, on.stream>>>(5);
               on.finish();
             }) == SIGABRT);
  BOOST_TEST(ending_of([] {
               Stream on;
               meet_unless<<<1, block, 0, on.stream>>>(block);
               on.finish();
             }) == 0);
}

}  // namespace
