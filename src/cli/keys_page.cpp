// keys_page FILE: writes the manual page of configuration keys, lockstep.ini(5), when the program is built:
// from the table that the program itself reads, checks and prints them by.
#include <fmt/format.h>

#include <fstream>

#include "train/config.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ofstream file(argv[1]);
  file << fmt::format(
      ".TH LOCKSTEP.INI 5 \"\" \"Lockstep " LOCKSTEP_VERSION
      "\" \"File Formats\"\n.SH NAME\nlockstep.ini \\- configuration of a run of lockstep train\n"
      ".SH DESCRIPTION\nAn INI file: [section] lines, and key = value lines, of which a # begins a "
      "comment. On the command line,\n"
      ".BR lockstep (1)\ntakes the same keys as --set SECTION.KEY=VALUE. A value may stand in quotes, "
      "single or double; in double "
      "ones \\e\\(dq \\e\\e \\en \\et \\er and \\exHH are what they are in C. Lists have blanks "
      "between their values: a name with a "
      "blank stands in quotes there. The resolved configuration is written to RUN/config.ini and "
      "stored in every checkpoint.\n{}",
      lockstep::train::describe_keys_for_man());
  return file.flush() ? 0 : 1;
}
