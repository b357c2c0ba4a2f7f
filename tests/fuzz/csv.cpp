// Tables: any bytes become a data file whose description reads the same table to the same values again, or
// one error of a line, which leaves no file.
//
// Input: a byte that chooses options, and the table.
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "data/prepare.h"
#include "data/table.h"
#include "lockstep/base/error.h"
#include "lockstep/hdf5/file.h"

namespace {

using namespace lockstep;
using namespace lockstep::data;

void require(bool holds) {
  if (!holds) std::abort();
}

/// Memory, not a disk: files are synced.
const std::string& folder() {
  static const std::string path = [] {
    std::string made = "/dev/shm/lockstep-fuzz-XXXXXX";
    require(mkdtemp(made.data()) != nullptr);
    return made;
  }();
  return path;
}

/// Whether it was prepared.
bool prepare(const std::string& table, const std::string& out, const CsvOptions& options) {
  const std::vector<std::string> inputs{table};
  try {
    prepare_csv(inputs, {out, true}, options);
    return true;
  } catch (const Error& error) {
    require(error.code() == ExitCode::usage || error.code() == ExitCode::data);
    require(std::string_view(error.what()).find('\n') == std::string_view::npos);
    require(!std::filesystem::exists(out));
    return false;
  }
}

std::vector<double> values_of(const std::string& path, const char* array) {
  const hdf5::File file = hdf5::File::open(path);
  return file.exists(array) ? file.open_dataset(array).read_all<double>() : std::vector<double>();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes == 0) return 0;
  const unsigned choice = data[0];
  const std::string table = folder() + "/in.csv", out = folder() + "/out.h5", again = folder() + "/again.h5";
  std::ofstream(table, std::ios::binary)
      .write(reinterpret_cast<const char*>(data) + 1, static_cast<std::streamsize>(bytes - 1));
  for (const std::string& path : {out, again, held_out_path(out)}) std::filesystem::remove(path);
  CsvOptions options;
  if (choice & 1) options.target = "1";
  if ((choice & 3) == 2) options.label = "none";
  if (choice & 4) options.categorical = {choice & 8 ? "2=code" : "2"};
  if (choice & 16) options.missing = {choice & 32 ? "drop" : "median"};
  if (choice & 64) options.dates = {"3=sines"};
  if (choice & 128) options.eval_fraction = 0.5;
  if (!prepare(table, out, options)) return 0;
  const std::vector<double> x = values_of(out, "x");
  for (const double value : x) require(std::isfinite(value));
  if (!options.describes_table() || options.eval_fraction > 0) return 0;
  CsvOptions like{.label = options.label, .statistics = out};
  if (!prepare(table, again, like)) return 0;  // two columns of one name
  require(values_of(again, "x") == x && values_of(again, "y") == values_of(out, "y") &&
          values_of(again, "codes") == values_of(out, "codes"));
  return 0;
}
