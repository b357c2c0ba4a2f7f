// keys_page man|markdown FILE: writes the reference of configuration keys during the build.
#include <fstream>
#include <string_view>

#include "train/config.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const bool markdown = std::string_view(argv[1]) == "markdown";
  std::ofstream file(argv[2]);
  file << (markdown ? lockstep::train::keys_as_markdown()
                    : lockstep::train::keys_as_man_page(LOCKSTEP_VERSION));
  return file.flush() ? 0 : 1;
}
