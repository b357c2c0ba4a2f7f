#!/usr/bin/env bash
# A model, task or data set that cannot be made as the registry makes it is refused by the compiler, in a sentence that says what is missing.
# Environment: CXX.
source "$(dirname "$0")/../support/cli.sh"

# not_compiled TEXT CODE: a program that registers Thing does not compile.
not_compiled() {
  printf '#include "lockstep/tasks/registry.h"\nnamespace ls = lockstep;\n%s\n' "$2" >program.cpp
  if "$CXX" -std=c++20 -fsyntax-only -I"$LOCKSTEP_SOURCE_DIR/include" program.cpp >errors 2>&1; then fail "compiles: $2"; fi
  grep -qF "$1" errors || fail "not said: $1: $(grep -m 3 error: errors)"
}
options='struct Options { int width = 1; LOCKSTEP_KEYS(width, "a width") };'
forward='ls::Var forward(ls::Tape& tape, const ls::Batch& batch) override { return tape.batch(batch["x"]); }'
loss='ls::Loss loss(ls::Tape&, ls::Model&, const ls::Batch&) override { return {}; }'
models='void add(ls::models::Registry& to) { to.add<Thing>("thing"); }' tasks='void add(ls::tasks::Registry& to) { to.add<Thing>("thing"); }'
not_compiled 'a Model with Options needs a public constructor (const Options&, std::uint64_t seed)' \
  "struct Thing : ls::Model { $options Thing(const Options&) : Model(1) {} $forward }; $models"
not_compiled 'a Model without Options needs a public constructor (std::uint64_t seed)' \
  "struct Thing : ls::Model { Thing() : Model(1) {} $forward }; $models"
not_compiled 'a struct Options describes its members: with LOCKSTEP_KEYS(member, "meaning", ...), or by options()' \
  "struct Thing : ls::Model { struct Options { int width = 1; }; Thing(const Options&, std::uint64_t seed) : Model(seed) {} $forward }; $models"
not_compiled 'Task with Options (const Options&)' "struct Thing : ls::Task { $options $loss }; $tasks"
not_compiled 'must define every pure virtual function of its base: forward() of a Model' \
  "struct Thing : ls::Model { explicit Thing(std::uint64_t seed) : Model(seed) {} }; $models"
not_compiled 'a registered class must derive from lockstep::Model' "struct Thing { explicit Thing(std::uint64_t) {} }; $models"
finish
