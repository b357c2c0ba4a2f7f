#!/usr/bin/env python3
"""The kernels of one step of a program, by name, with their number and time: one JSON document.

Usage: kernel_list.py [--library LIBRARY | --count] [--steps FEW MANY] -- COMMAND...

Runs COMMAND --steps FEW and COMMAND --steps MANY with the library of kernel_list.cpp, which counts all that the GPU does. The difference
divided by MANY - FEW is a step: what loads, warms up or captures is in both. It works inside CUDA graphs, and for programs other than
Lockstep. Times are the kernels' own, so their sum has no gaps between them. Exit code 77: there is no library, or no CUPTI, or COMMAND
says so. What differs between the runs is divided by MANY - FEW, too, so that is 40.

Each kernel must have run a whole number of times more in each of the further steps, none in fewer steps alone. Where that does not hold,
COMMAND --steps FEW runs once more: a compiler with an empty cache launches what it tries, and has that cache then. Copies may be any
number: a program's own threads make some. Nothing is kept between two starts: where time ends MANY, FEW was in vain.

--count: COMMAND has the emulated GPU (tests/emulated_gpu), which counts by itself, bytes instead of times; a table for people.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

LIBRARY = pathlib.Path(__file__).resolve().parents[2] / "libexec" / "libkernel_list.so"  # of a bundle


def complain(text, code=1):
    print(f"kernel_list.py: {text}", file=sys.stderr)
    sys.exit(code)


def totals(command, steps, settings):
    """Of a whole run. Each of its processes that has launched a kernel leaves a file."""
    with tempfile.TemporaryDirectory() as folder:
        return totals_in(pathlib.Path(folder), command, steps, settings)


def totals_in(folder, command, steps, settings):
    environment = {**os.environ, **settings, "LOCKSTEP_KERNEL_LIST": str(folder / "list.json")}
    if not shutil.which(command[0]):
        complain(f"{command[0]}: there is no such program")
    done = subprocess.run([*command, "--steps", str(steps)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
                          env=environment, check=False)
    said = done.stderr.strip()[-2000:]
    if done.returncode:
        complain(f"{' '.join(command)} --steps {steps}: exit code {done.returncode}: {said}", 77 if done.returncode == 77 else 1)
    files = list(folder.iterdir())
    if not files and (refused := re.search(r"^kernel_list: (no CUPTI|CUPTI refuses).*", done.stderr, re.MULTILINE)):
        complain(refused[0], 77)
    if not files:
        complain(f"{' '.join(command)} left no list of kernels: it must end by itself, and use a GPU: {said}")
    if len(files) > 1:
        complain(f"{' '.join(command)} had {len(files)} processes with kernels: only a command with one is counted, as of one rank")
    try:
        found = json.loads(files[0].read_text(encoding="utf-8"))
    except ValueError as error:
        complain(f"{' '.join(command)} left half a list of kernels ({error}): it must end by itself, and the disk have room: {said}")
    if not isinstance(found, dict) or not {"kernels", "copies", "dropped", "unfinished"} <= found.keys():
        complain(f"{' '.join(command)} left another file than a list of kernels")
    if found["dropped"]:
        complain(f"CUPTI dropped {found['dropped']} records: fewer steps")
    if found["unfinished"]:
        complain(f"{found['unfinished']} records of CUPTI have no times: the command must wait for its GPU before it ends")
    return found


def uneven(few, many, steps):
    """The first kernel that is not part of each step so many times, and why; None: there is none."""
    after = {entry["name"]: entry["count"] for entry in many}
    before = {entry["name"]: entry["count"] for entry in few}
    for name in [*after, *(name for name in before if name not in after)]:
        more = after.get(name, 0) - before.get(name, 0)
        if more < 0 or more % steps:
            return f"{name} was launched {before.get(name, 0)} times in the first run and {after.get(name, 0)} times in that of {steps} steps more"
    return None


def per_step(few, many, steps):
    """The difference of two lists, a step; what is in both alike is left out. The longest first."""
    before = {entry["name"]: entry for entry in few}
    rows = []
    for entry in many:
        was = before.get(entry["name"], {"count": 0, "ns": 0, "bytes": 0})
        if entry["count"] == was["count"]:
            continue
        row = {"name": entry["name"], "count": (entry["count"] - was["count"]) / steps,
               "ms": round((entry["ns"] - was["ns"]) / steps / 1e6, 5)}
        if "bytes" in entry:
            row["bytes"] = (entry["bytes"] - was["bytes"]) / steps
        rows.append({**row, **{key: entry[key] for key in ("grid", "block") if key in entry}})
    return sorted(rows, key=lambda row: -row["ms"])


def print_counts(kernels, copies):
    """The largest first. Without bytes where the kernels were not compiled such that their accesses are seen."""
    seen = all("bytes" in row for row in kernels)
    for row in sorted(kernels + copies, key=lambda row: -row.get("bytes", 0)):
        print(f"{row['count']:>8.0f}" + (f"{row['bytes'] / 1e9:>10.3f} GB" if seen else "") + f"  {row['name']}")
    print(f"{sum(row['count'] for row in kernels):.0f} launches" + (f", {sum(row['bytes'] for row in kernels) / 1e9:.2f} GB" if seen else "") + " a step")


def parse(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=pathlib.Path, default=LIBRARY)
    parser.add_argument("--count", action="store_true")
    parser.add_argument("--steps", type=int, nargs=2, default=[2, 42], metavar=("FEW", "MANY"))
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(argv)
    if options.steps[0] >= options.steps[1]:
        parser.error("--steps FEW MANY: MANY must be the larger number")
    return options


def main():
    options = parse()
    if not options.count and not options.library.exists():
        complain(f"{options.library} is not here: this build has no CUPTI: build where CUDA has cupti.h, or name --library", 77)
    settings = {"LOCKSTEP_EMULATED_GPU": "count"} if options.count else {"CUDA_INJECTION64_PATH": str(options.library.resolve())}
    few, many = options.steps
    first, second = (totals(options.command, steps, settings) for steps in (few, many))
    if uneven(first["kernels"], second["kernels"], many - few):
        first = totals(options.command, few, settings)
    if reason := uneven(first["kernels"], second["kernels"], many - few):
        complain(f"{reason}: steps differ, or kernels were chosen by trial in one of both runs: fixed choices, or other --steps")
    kernels, copies = (per_step(first[kind], second[kind], many - few) for kind in ("kernels", "copies"))
    if not kernels:
        complain(f"{many - few} steps more have no kernel more: does the command take --steps, and compute on the GPU?")
    if options.count:
        print_counts(kernels, copies)
        return
    print(json.dumps({"command": " ".join(options.command), "launches": sum(row["count"] for row in kernels),
                      "kernel_ms": round(sum(row["ms"] for row in kernels), 5), "kernels": kernels, "copies": copies}))


if __name__ == "__main__":
    main()
