#include "base/cores.h"

#include <hwloc.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::atomic<bool> any_bound = false;

struct HwlocDelete {
  void operator()(hwloc_topology* topology) const { hwloc_topology_destroy(topology); }
  void operator()(hwloc_bitmap_s* bitmap) const { hwloc_bitmap_free(bitmap); }
};
using Bitmap = std::unique_ptr<hwloc_bitmap_s, HwlocDelete>;

/// The sockets, cores and hardware threads of this node, those outside this process's cgroup included. It
/// leaves out other objects (caches, devices) and hwloc's x86 component, which binds itself to each core in
/// turn: they make loading 20 times slower (46 ms instead of 2.3 on 2 cores).
hwloc_topology_t node_topology() {
  static const std::unique_ptr<hwloc_topology, HwlocDelete> loaded = [] {
    hwloc_topology_t topology = nullptr;
    if (hwloc_topology_init(&topology) != 0) throw FailureError("hwloc cannot start: is memory exhausted?");
    std::unique_ptr<hwloc_topology, HwlocDelete> owner(topology);
    hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_NONE);
    hwloc_topology_set_type_filter(topology, HWLOC_OBJ_PACKAGE, HWLOC_TYPE_FILTER_KEEP_ALL);
    hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
    hwloc_topology_set_flags(topology, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED);
    hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
    if (hwloc_topology_load(topology) != 0)
      throw FailureError("hwloc cannot read this node's processors; run hwloc-info for details");
    return owner;
  }();
  return loaded.get();
}

CoreSet to_core_set(hwloc_const_bitmap_t bitmap) {
  CoreSet cores;
  for (int core = hwloc_bitmap_first(bitmap); core >= 0; core = hwloc_bitmap_next(bitmap, core))
    cores.insert(core);
  return cores;
}

Bitmap to_bitmap(const CoreSet& cores) {
  Bitmap bitmap(hwloc_bitmap_alloc());
  for (const int core : cores) hwloc_bitmap_set(bitmap.get(), static_cast<unsigned>(core));
  return bitmap;
}

/// Calls visit(core, its threads among `hardware_threads`) for each core that has some, socket by socket. A
/// hardware thread is a core where the system does not report cores.
template <class Visit>
void for_each_core(const CoreSet& hardware_threads, const Visit& visit) {
  const int depth = hwloc_get_type_or_below_depth(node_topology(), HWLOC_OBJ_CORE);
  for (hwloc_obj_t core = nullptr; (core = hwloc_get_next_obj_by_depth(node_topology(), depth, core));) {
    CoreSet threads = to_core_set(core->cpuset);
    std::erase_if(threads, [&](int thread) { return !hardware_threads.contains(thread); });
    if (!threads.empty()) visit(*core, threads);
  }
}

}  // namespace

std::string to_text(const CoreSet& cores) {
  const Bitmap bitmap = to_bitmap(cores);
  std::string text(static_cast<std::size_t>(hwloc_bitmap_list_snprintf(nullptr, 0, bitmap.get())), '\0');
  hwloc_bitmap_list_snprintf(text.data(), text.size() + 1, bitmap.get());
  return text;
}

CoreSet cores_in(const std::string& text) {
  const Bitmap bitmap(hwloc_bitmap_alloc());
  const bool good = hwloc_bitmap_list_sscanf(bitmap.get(), text.c_str()) == 0;
  const bool finite = hwloc_bitmap_weight(bitmap.get()) >= 0;  // "2-" is infinite
  return good && finite ? to_core_set(bitmap.get()) : CoreSet{};
}

CoreSet united(const std::vector<CoreSet>& sets) {
  CoreSet all;
  for (const CoreSet& set : sets) all.insert(set.begin(), set.end());
  return all;
}

bool overlap(const CoreSet& a, const CoreSet& b) {
  return std::ranges::any_of(a, [&](int core) { return b.contains(core); });
}

CoreSet own_cores() {
  const Bitmap bitmap(hwloc_bitmap_alloc());
  if (hwloc_get_cpubind(node_topology(), bitmap.get(), HWLOC_CPUBIND_THREAD) != 0) return {};
  return to_core_set(bitmap.get());
}

const CoreSet& process_cores() {
  static const CoreSet cores = own_cores();
  return cores;
}

bool bind_thread(const CoreSet& hardware_threads) {
  process_cores();  // records the mask before it changes
  if (hwloc_set_cpubind(node_topology(), to_bitmap(hardware_threads).get(), HWLOC_CPUBIND_THREAD) != 0)
    return false;
  any_bound = true;
  return true;
}

bool threads_bound() { return any_bound; }

CoreSet physical_cores(const CoreSet& hardware_threads) {
  CoreSet physical;
  for_each_core(hardware_threads, [&](const hwloc_obj& core, const CoreSet&) {
    physical.insert(hwloc_bitmap_first(core.complete_cpuset));
  });
  return physical;
}

std::vector<CoreSet> core_by_core(const CoreSet& hardware_threads) {
  std::vector<CoreSet> cores;
  for_each_core(hardware_threads,
                [&](const hwloc_obj&, const CoreSet& threads) { cores.push_back(threads); });
  return cores;
}

int machine_cores() { return hwloc_get_nbobjs_by_type(node_topology(), HWLOC_OBJ_PU); }

int available_cores() { return std::max(1, static_cast<int>(process_cores().size())); }

}  // namespace lockstep
