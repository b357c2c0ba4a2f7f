"""Packs a bundle's folder as a wheel: wheel.py FOLDER lockstep-VERSION-py3-none-PLATFORM.whl SUMMARY.

pip puts the folder at opt/lockstep of an environment, and the commands below into its bin. (pip install --target leaves out what is in
lib.) The commands are apart from Open MPI's names, so that an environment's bin on PATH does not hide the mpirun of the machine. A wheel
has no links: each becomes a copy.
"""
import base64
import hashlib
import os
import sys
import zipfile

COMMANDS = {
    "lockstep": 'exec "$root/bin/lockstep" "$@"',
    # The ranks are of this wheel, whatever else PATH has.
    "lockstep-mpirun": 'PATH=$root/bin:$PATH exec "$root/bin/mpirun" "$@"',
    "lockstep-train": 'exec "$root/jobs/train-mpirun.sh" "$@"',
    "lockstep-jobs": 'echo "$root/jobs"',
}
COMMAND = """#!/bin/sh
root=$(readlink -f "$0")
root=${root%/bin/*}/opt/lockstep
"""
# Where an environment has these; all else is at opt/lockstep.
PLACES = {"share/man/": "share/man/", "share/completion/": "share/bash-completion/completions/"}
METADATA = """Metadata-Version: 2.1
Name: lockstep
Version: {version}
Summary: {summary}
License: MIT
License-File: LICENSE
Classifier: Environment :: Console
Classifier: License :: OSI Approved :: MIT License
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C++
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence

The program lockstep, with Open MPI and every library that it needs but glibc and CUDA. There is no Python module in it.

    lockstep doctor                                     checks this machine
    lockstep-mpirun -n 2 lockstep train CONFIG          the Open MPI of this wheel starts two ranks
    lockstep-train 2 CONFIG                             the same; Ctrl-C ends it with a checkpoint
    lockstep-jobs                                       prints the folder of the scripts for Slurm and of examples

The licences of what is included are in opt/lockstep/licenses of the environment. opt/lockstep/INSTALL says more.
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: lockstep\nRoot-Is-Purelib: false\nTag: {tag}\n"


def main():
    folder, wheel, summary = sys.argv[1:]
    name, version, tag = os.path.basename(wheel)[:-len(".whl")].split("-", 2)
    data, info = f"{name}-{version}.data", f"{name}-{version}.dist-info"
    record = []

    def add(pack, path, content, mode=0o644):
        entry = zipfile.ZipInfo(path)  # of 1980: the same bytes every time
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100000 | mode) << 16
        pack.writestr(entry, content, compresslevel=6)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(content)}\n")

    with zipfile.ZipFile(wheel, "w") as pack:
        for where, folders, files in os.walk(folder):
            folders.sort()
            for file in sorted(files):
                path = os.path.join(where, file)
                place = os.path.relpath(path, folder)
                beginning = next((beginning for beginning in PLACES if place.startswith(beginning)), "")
                place = PLACES.get(beginning, "opt/lockstep/") + place[len(beginning):]
                with open(path, "rb") as content:
                    add(pack, f"{data}/data/{place}", content.read(), 0o755 if os.access(path, os.X_OK) else 0o644)
        for command, line in COMMANDS.items():
            add(pack, f"{data}/scripts/{command}", (COMMAND + line + "\n").encode(), 0o755)
        with open(os.path.join(folder, "LICENSE"), "rb") as content:
            add(pack, f"{info}/licenses/LICENSE", content.read())
        add(pack, f"{info}/METADATA", METADATA.format(version=version, summary=summary).encode())
        add(pack, f"{info}/WHEEL", WHEEL.format(tag=tag).encode())
        pack.writestr(f"{info}/RECORD", "".join(record) + f"{info}/RECORD,,\n")


main()
