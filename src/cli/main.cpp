// lockstep: the program with the built-in models and tasks.
#include "lockstep/cli/app.h"

int main(int argc, char** argv) { return lockstep::App("lockstep").run(argc, argv); }
