// A list of kernels: how often a program launched each, and how long they took, also inside CUDA graphs. The
// CUDA driver loads this library where CUDA_INJECTION64_PATH names it, so the program needs no change. When
// the program ends, one JSON document goes to the file that LOCKSTEP_KERNEL_LIST names, with the number of
// the process behind a dot (ranks and helpers inherit the name): totals from its start. kernel_list.py makes
// figures of a step of them. tests/emulated_gpu/counting.cpp writes the same form.
//
// The records come from CUPTI, which is opened at run time: from LOCKSTEP_CUPTI, where the loader finds it
// (LD_LIBRARY_PATH), or from CUDA's folders. So neither this library nor a bundle needs it until then.
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace {

decltype(&cuptiActivityEnable) enable;
decltype(&cuptiActivityRegisterCallbacks) register_callbacks;
decltype(&cuptiActivityFlushAll) flush_all;
decltype(&cuptiActivityGetNextRecord) next_record;
decltype(&cuptiActivityGetNumDroppedRecords) dropped_records;

struct Figures {
  std::uint64_t count = 0, ns = 0, bytes = 0;
  std::uint64_t max_threads = 0;  ///< of a launch; the next two are of the first such launch
  std::array<std::int32_t, 3> grid = {}, block = {};
};

/// What all threads of CUPTI add to. It is never destroyed, as they may outlive main().
struct Totals {
  std::mutex mutex;
  std::map<std::string, Figures> kernels, copies;  ///< kernels by their mangled names
  std::uint64_t dropped = 0;
  std::uint64_t unfinished = 0;  ///< without times, or with an end before the start
};
Totals& totals() {
  static Totals& all = *new Totals;
  return all;
}

/// A function's name without its arguments' types; template arguments of template arguments become "...".
std::string short_name(const std::string& mangled) {
  int status = -1;
  char* const demangled = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : mangled;
  std::free(demangled);
  if (status != 0) return name;
  if (name.starts_with("void ")) name.erase(0, 5);
  const std::string nobody = "(anonymous namespace)::";
  for (std::size_t at; (at = name.find(nobody)) != std::string::npos;) name.erase(at, nobody.size());
  std::string text;
  int depth = 0;
  for (const char c : name) {
    if (c == '(' && depth == 0) break;
    if (c == '>') --depth;
    if (depth < 2) text += c;
    if (c == '<' && ++depth == 2) text += "...";
  }
  return text;
}

std::string copy_name(int kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "memcpy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "memcpy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "memcpy device to device";
    default:
      return "memcpy of kind " + std::to_string(kind);
  }
}

/// Its time is added, unless it has none.
template <class Record>
Figures* finished(std::map<std::string, Figures>& all, const std::string& name, const Record& record) {
  if (record.end == 0 || record.end < record.start) {
    ++totals().unfinished;
    return nullptr;
  }
  Figures& figures = all[name];
  ++figures.count;
  figures.ns += record.end - record.start;
  return &figures;
}

void add(const CUpti_Activity* record) {
  // The oldest forms of these records that CUDA 12.4 and later write: later ones only append members.
  if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || record->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
    const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    Figures* const figures = finished(totals().kernels, kernel.name ? kernel.name : "?", kernel);
    if (!figures) return;
    std::uint64_t threads = 1;
    for (const std::int32_t extent :
         {kernel.gridX, kernel.gridY, kernel.gridZ, kernel.blockX, kernel.blockY, kernel.blockZ})
      threads *= static_cast<std::uint64_t>(extent);
    if (threads <= figures->max_threads) return;
    figures->max_threads = threads;
    figures->grid = {kernel.gridX, kernel.gridY, kernel.gridZ};
    figures->block = {kernel.blockX, kernel.blockY, kernel.blockZ};
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
    if (Figures* const figures = finished(totals().copies, copy_name(copy.copyKind), copy))
      figures->bytes += copy.bytes;
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
    const auto& fill = *reinterpret_cast<const CUpti_ActivityMemset4*>(record);
    if (Figures* const figures = finished(totals().copies, "memset", fill)) figures->bytes += fill.bytes;
  }
}

void CUPTIAPI provide_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  *size = 4 << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(64, *size));
  *max_records = 0;  // as many as fit
}

void CUPTIAPI read_buffer(CUcontext context, std::uint32_t stream, std::uint8_t* buffer, std::size_t,
                          std::size_t valid_bytes) {
  const std::lock_guard lock(totals().mutex);
  for (CUpti_Activity* record = nullptr; next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS;)
    add(record);
  std::size_t dropped = 0;
  dropped_records(context, stream, &dropped);
  totals().dropped += dropped;
  std::free(buffer);
}

std::string json_text(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + '"';
}

/// A list of JSON objects, the longest time first.
std::string json_list(const std::map<std::string, Figures>& all, bool kernels) {
  std::multimap<std::uint64_t, std::string, std::greater<>> rows;
  for (const auto& [name, figures] : all) {
    std::string row = "{\"name\": " + json_text(name) + ", \"count\": " + std::to_string(figures.count) +
                      ", \"ns\": " + std::to_string(figures.ns);
    for (const auto& [key, extents] : {std::pair{"grid", figures.grid}, std::pair{"block", figures.block}}) {
      if (kernels)
        row += std::string(", \"") + key + "\": [" + std::to_string(extents[0]) + ", " +
               std::to_string(extents[1]) + ", " + std::to_string(extents[2]) + "]";
    }
    if (!kernels) row += ", \"bytes\": " + std::to_string(figures.bytes);
    rows.emplace(figures.ns, row + "}");
  }
  std::string text;
  for (const auto& [ns, row] : rows) text += (text.empty() ? "" : ",\n  ") + row;
  return "[" + text + "]";
}

pid_t counted = 0;  ///< the process that CUPTI was started in

void write() {
  if (getpid() != counted) return;  // its child, which has a copy of the totals
  flush_all(1);
  const std::lock_guard lock(totals().mutex);
  if (totals().kernels.empty() && totals().unfinished + totals().dropped == 0) return;  // a helper
  std::map<std::string, Figures> kernels;
  for (const auto& [mangled, figures] : totals().kernels) {
    Figures& sum = kernels[short_name(mangled)];
    sum.count += figures.count;
    sum.ns += figures.ns;
    if (figures.max_threads <= sum.max_threads) continue;
    sum.max_threads = figures.max_threads;
    sum.grid = figures.grid;
    sum.block = figures.block;
  }
  const char* const name = std::getenv("LOCKSTEP_KERNEL_LIST");
  const std::string path = (name ? name : "") + ("." + std::to_string(counted));
  std::FILE* const file = name ? std::fopen(path.c_str(), "w") : stderr;
  if (!file) {
    std::fprintf(
        stderr,
        "kernel_list: %s: %s: LOCKSTEP_KERNEL_LIST must name a file in a folder that can be written\n",
        path.c_str(), std::strerror(errno));
    return;
  }
  std::fprintf(file, "{\"kernels\": %s,\n \"copies\": %s,\n \"dropped\": %llu, \"unfinished\": %llu}\n",
               json_list(kernels, true).c_str(), json_list(totals().copies, false).c_str(),
               static_cast<unsigned long long>(totals().dropped),
               static_cast<unsigned long long>(totals().unfinished));
  if (file != stderr) std::fclose(file);
}

const std::string cupti_name = "libcupti.so." + std::to_string(CUDA_VERSION / 1000);

void* open_cupti() {
  if (const char* const path = std::getenv("LOCKSTEP_CUPTI")) return dlopen(path, RTLD_NOW);
  for (const std::string folder :
       {"", LOCKSTEP_CUDA_FOLDER "/", "/usr/local/cuda/extras/CUPTI/lib64/", "/usr/local/cuda/lib64/"}) {
    if (void* const library = dlopen((folder + cupti_name).c_str(), RTLD_NOW)) return library;
  }
  return nullptr;
}

template <class Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool start() {
  void* const library = open_cupti();
  if (!library || !find(library, "cuptiActivityEnable", enable) ||
      !find(library, "cuptiActivityRegisterCallbacks", register_callbacks) ||
      !find(library, "cuptiActivityFlushAll", flush_all) ||
      !find(library, "cuptiActivityGetNextRecord", next_record) ||
      !find(library, "cuptiActivityGetNumDroppedRecords", dropped_records)) {
    const char* const reason = dlerror();
    std::fprintf(stderr,
                 "kernel_list: no CUPTI: %s: set LOCKSTEP_CUPTI to the path of %s, which is in "
                 "extras/CUPTI/lib64 of CUDA "
                 "and in PyPI's nvidia-cuda-cupti\n",
                 reason ? reason : "it lacks a function", cupti_name.c_str());
    return false;
  }
  CUptiResult status = register_callbacks(provide_buffer, read_buffer);
  // Not CUPTI_ACTIVITY_KIND_GRAPH_TRACE, which has one record a graph instead of one a kernel of it.
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    if (status == CUPTI_SUCCESS) status = enable(kind);
  }
  if (status != CUPTI_SUCCESS)
    std::fprintf(stderr,
                 "kernel_list: CUPTI refuses with error %d: end other profilers of this program; another "
                 "libcupti may be "
                 "named by LOCKSTEP_CUPTI\n",
                 status);
  return status == CUPTI_SUCCESS;
}

}  // namespace

/// The driver calls it at its own start.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  counted = getpid();
  if (start()) std::atexit(write);  // after CUPTI's own, so it runs before
  return 1;
}
