#include "data/whole_file.h"

#include <unistd.h>

#include <string>
#include <vector>

#include "base/output.h"

namespace lockstep::data {

void check_output(std::span<const std::string> inputs, const Output& output, const std::string& statistics) {
  std::vector<std::string> all(inputs.begin(), inputs.end());
  if (!statistics.empty()) all.push_back(statistics);
  lockstep::check_output(output.path, {.replace = output.replace, .inputs = all});
}

void write_whole(const Output& output, const std::function<void(hdf5::File&)>& write) {
  const std::string temporary = temporary_path(output.path, std::to_string(::getpid()));
  remove_file(temporary);  // of an earlier process of this number
  hdf5::File file = hdf5::File::create(temporary);
  Draft draft(temporary);
  write(file);
  file.close();
  OpenFile(draft.path(), OpenFile::Mode::write).sync();
  draft.publish(output.path, output.replace);
}

}  // namespace lockstep::data
