"""Turns CTest's list of tests into one that runs without CTest, and without the build folder.

    ctest --show-only=json-v1 | test_list.py SOURCE BUILD PROGRAMS MPIRUN >tests/list.json

SOURCE, BUILD: the folders; PROGRAMS: a file that names every program built, a path a line; MPIRUN: CTest's mpirun.
In the list, a test a line, {bundle} stands for the folder of the bundle, and mpirun is the one on PATH. Tests that need the build
folder or CMake itself are left out; which ones, standard error says.
"""
import json
import os
import sys

RUNNERS = {"bash", "sh", "mpirun"}  # what a command may begin with, besides a program of the bundle


def moved(program):
    """Where a built program lies in the bundle."""
    name = os.path.basename(program)
    if name == "lockstep":
        return "{bundle}/bin/lockstep"
    return ("{bundle}/libexec/" if name.endswith(".so") else "{bundle}/tests/bin/") + name


def main():
    source, build, programs_file, mpirun = sys.argv[1:]
    with open(programs_file, encoding="utf-8") as file:
        programs = sorted(file.read().split("\n"), key=len, reverse=True)  # a path may begin another one

    def translated(text):
        for program in filter(None, programs):
            text = text.replace(program, moved(program))
        return text.replace(mpirun, "mpirun").replace(build, "{build}").replace(source, "{bundle}")

    tests, left_out = [], []
    for entry in json.load(sys.stdin)["tests"]:
        properties = {item["name"]: item["value"] for item in entry.get("properties", [])}
        command = [translated(word) for word in entry.get("command", [])]
        if command and os.path.basename(command[0]) in RUNNERS:
            command[0] = os.path.basename(command[0])
        environment = dict(item.split("=", 1) for item in map(translated, properties.get("ENVIRONMENT", [])))
        at_home = any("{build}" in text for text in command + list(environment.values()))
        if not command or at_home or not (command[0] in RUNNERS or command[0].startswith("{bundle}/")):
            left_out.append(entry["name"])
            continue
        tests.append({"name": entry["name"], "labels": properties.get("LABELS", []), "command": command,
                      "environment": environment, "timeout_s": properties.get("TIMEOUT", 120),
                      "skip_code": properties.get("SKIP_RETURN_CODE", 77)})
    if left_out:
        print("Tests that stay here:", *left_out, file=sys.stderr)
    print("[\n" + ",\n".join(map(json.dumps, tests)) + "\n]")


main()
