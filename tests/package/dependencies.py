#!/usr/bin/env python3
"""dependencies.py SOURCE: every place that lists what Lockstep needs lists the same, each under its own names.

jobs/setup.sh and CMake are run by every test; INSTALL's lines for Spack, conda and clusters and packaging/spack/package.py are not, so
they are compared here. A new dependency has a row in NAMES and a word in each place.
"""
import re
import sys
from pathlib import Path

PLACES = ["CMake", "jobs/setup.sh", "INSTALL: what Lockstep needs", "INSTALL: a cluster", "INSTALL: Spack", "INSTALL: conda"]
# How the places call a dependency, in their order. Several names: all of them.
NAMES = """
Threads OpenMP  | g++                          | C++20 compiler | gcc           | -             | cxx-compiler
cmake_minimum   | cmake                        | CMake          | cmake         | cmake         | cmake
-               | ninja-build                  | Ninja          | ninja         | ninja         | ninja
PkgConfig       | pkg-config                   | -              | -             | -             | pkg-config
MPI             | libopenmpi-dev openmpi-bin   | Open MPI       | openmpi       | openmpi       | openmpi
hwloc           | libhwloc-dev                 | hwloc          | hwloc         | hwloc         | libhwloc
hdf5            | libhdf5-dev hdf5-tools       | HDF5           | hdf5          | hdf5          | hdf5
DNNL            | libdnnl-dev                  | oneDNN         | onednn        | onednn        | onednn
openblas        | libopenblas-openmp-dev       | OpenBLAS       | -             | -             | -
Boost           | libboost-program-options-dev | Boost          | boost         | boost         | boost-cpp
fmt             | libfmt-dev                   | {fmt}          | fmt           | fmt           | fmt
spdlog          | libspdlog-dev                | spdlog         | spdlog        | spdlog        | spdlog
nlohmann_json   | nlohmann-json3-dev           | nlohmann/json  | json          | nlohmann-json | nlohmann_json
xxhash          | libxxhash-dev                | xxHash         | xxhash        | xxhash        | xxhash
ZLIB            | zlib1g-dev                   | zlib           | zlib          | zlib          | zlib
PNG             | libpng-dev                   | libpng         | libpng        | libpng        | libpng
JPEG            | libjpeg-dev                  | libjpeg-turbo  | libjpeg-turbo | libjpeg-turbo | libjpeg-turbo
pcre2           | libpcre2-dev                 | PCRE2          | pcre2         | pcre2         | pcre2
utf8proc        | libutf8proc-dev              | utf8proc       | utf8proc      | utf8proc      | utf8proc
Eigen3          | libeigen3-dev                | Eigen          | eigen3        | eigen         | eigen
"""
# What a recipe calls otherwise than a command line of Spack does, what it may say, and what it must say although that line does not.
RECIPE = {"zlib-api": "zlib"}
RECIPE_ONLY = {"c", "cxx", "pkgconfig", "cuda", "cudnn", "nccl"}
RECIPE_BESIDES = {"openblas"}


def main():
    source = Path(sys.argv[1])
    text = {name: (source / name).read_text() for name in
            ("INSTALL", "CMakeLists.txt", "cmake/LockstepDependencies.cmake", "cmake/LockstepPackage.cmake", "jobs/setup.sh",
             "packaging/Containerfile", "packaging/spack/package.py")}
    failures = []

    def find(pattern, name):
        found = re.search(pattern, text[name], re.M | re.S)
        if not found:
            failures.append(f"{name}: nothing there is {pattern}: put it back, or tell this test where it went")
            return ""
        return re.sub(r"\\\n", " ", found[1])

    def compare(place, has, wants):
        failures.extend(f"{place} lacks {name}" for name in sorted(wants - has))
        failures.extend(f"{place} has {name}, which this test does not know: add it to the other places, and to NAMES"
                        for name in sorted(has - wants))

    def words(line):
        return {re.sub(r"[@~/].*|\+[a-z].*", "", word) for word in line.split()}

    rows = [[cell.strip() for cell in line.split("|")] for line in NAMES.strip().splitlines()]
    # A column whose names may have blanks is split nowhere, the others are lists.
    wanted = {place: {name for row in rows for name in ([row[i]] if "needs" in place else row[i].split()) if name != "-"}
              for i, place in enumerate(PLACES)}

    cmake = text["cmake/LockstepDependencies.cmake"] + text["CMakeLists.txt"].split("if(LOCKSTEP_TESTS")[0]
    compare("CMake", {name.removesuffix("_LIBRARY") for name in re.findall(
        r"^ *(?:find_package|find_library|pkg_check_modules|pkg_search_module)\((\w+)|^(?=cmake_minimum)", cmake, re.M)} - {""} |
        {"cmake_minimum"}, wanted["CMake"])
    setup = words(find(r"^build_packages=\((.*?)\)", "jobs/setup.sh"))
    of_some_processors = words(" ".join(re.findall(r"build_packages\+=\((.*?)\)", text["jobs/setup.sh"])))
    compare("jobs/setup.sh", setup | of_some_processors, wanted["jobs/setup.sh"])
    compare("INSTALL: apt-get install", words(find(r"by hand:\n  apt-get install (.*?[^\\])\n", "INSTALL")), setup)
    needs = find(r"^Lockstep needs (.*?)\n\n\n", "INSTALL")
    listed = [line for line in needs.splitlines() if line.startswith("  ") and " optional: " not in line]
    compare("INSTALL: what Lockstep needs",
            {name for line in listed for name in re.sub(r" [\d.]+( or newer)?$", "", re.split("  +", line.strip())[0]).split(", ")} |
            {name for name in ("C++20 compiler", "CMake", "Ninja") if name in needs.splitlines()[0]}, wanted["INSTALL: what Lockstep needs"])
    compare("INSTALL: a cluster", words(find(r"^  module load (.*?)\n", "INSTALL")) |
            {name.removesuffix("-devel") for name in re.findall(r"\S+-devel", find(r"Spack below(.*?)\(EPEL\)", "INSTALL"))},
            wanted["INSTALL: a cluster"])
    for verb in ("install", "load"):
        compare(f"INSTALL: spack {verb}", words(find(rf"^  spack {verb} (.*?)\n", "INSTALL")), wanted["INSTALL: Spack"])
    compare("INSTALL: conda", words(find(r"conda-forge (.*?[^\\])\n", "INSTALL")), wanted["INSTALL: conda"])

    asked = re.findall(r'depends_on\("([\w-]+)(?:@([\d.]+):)?', text["packaging/spack/package.py"])
    compare("packaging/spack/package.py", {RECIPE.get(name, name) for name, _ in asked} - RECIPE_ONLY,
            wanted["INSTALL: Spack"] | RECIPE_BESIDES)
    least = dict(re.findall(r"^  (\S+) ([\d.]+)(?: or newer)? ", needs, re.M)) | dict(re.findall(r"(CMake) ([\d.]+\d)", needs))
    for name, version in least.items():
        spack = next((row[4] for row in rows if row[2] == name), "")
        if dict(asked).get(spack) != version:
            failures.append(f"packaging/spack/package.py asks for {spack} {dict(asked).get(spack)}, INSTALL for {name} {version}")
    # These two take the list of jobs/setup.sh.
    find(r"(source jobs/setup\.sh && install_packages \"\$\{build_packages\[@\]\}\")", "packaging/Containerfile")
    find(r"(file\(READ jobs/setup\.sh .*build_packages)", "cmake/LockstepPackage.cmake")

    for failure in failures:
        print(f"FAILED: {failure}")
    print(f"{len(failures)} failed" if failures else "all held")
    return 1 if failures else 0


sys.exit(main())
