"""What kernels take of a multiprocessor, as ptxas says: registers, local memory, shared memory, and the occupancy that follows.

    registers.py BUILD TABLE            fails where a kernel has more spills or local memory than TABLE says, or is not in it
    registers.py BUILD TABLE --write    writes TABLE

BUILD: a build folder with compile_commands.json. For compute capability 9.0. A row is the most of a kernel's instances.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

ARCHITECTURE = "sm_90"
REGISTERS, WARPS, BLOCKS, SHARED_BYTES = 65536, 64, 32, 227 * 1024  # of a multiprocessor
COLUMNS = ["kernel", "instances", "registers", "spilled bytes", "local bytes", "shared bytes", "threads", "occupancy"]


def command_of(entry, folder):
    """The command that makes device code alone of a source, and says what it takes."""
    words, kept, skip = shlex.split(entry["command"]), [], False
    while words and not os.path.basename(words[0]).startswith("nvcc"):
        words.pop(0)
    for word in words:
        if skip or word in ("-c", "-MD") or word.startswith(("--generate-code", "-gencode", "-arch")):
            skip = False
        elif word in ("-o", "-MF", "-MT", "-x"):
            skip = True
        else:
            kept.append(word)
    return kept + ["-cubin", "-arch=" + ARCHITECTURE, "-Xptxas=-v", "--keep", "--keep-dir", folder, "-o", os.path.join(folder, "cubin")]


def plain(name):
    """The kernel's own name, without namespace, arguments and those of its template."""
    found = re.search(r"([A-Za-z_]\w*)\s*(<|\()", re.sub(r"\(anonymous namespace\)::|(\w+::)+", "", re.sub(r"^void ", "", name)))
    return found.group(1) if found else name


def kernels_of(entry):
    """(name, what ptxas says) of each kernel of a source."""
    with tempfile.TemporaryDirectory() as folder:
        asked = subprocess.run(command_of(entry, folder), cwd=entry["directory"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if asked.returncode != 0:
            sys.exit(f"{entry['file']}: {asked.stdout}")
        ptx = "".join(open(os.path.join(folder, name), encoding="utf-8").read() for name in os.listdir(folder) if name.endswith(".ptx"))
    threads = {name: int(x) * int(y or 1) for name, x, y in re.findall(r"\.entry (\w+)\([^)]*\)\s*\.maxntid (\d+)(?:, (\d+))?", ptx)}
    found = []
    for part in re.split(r"Compiling entry function '", asked.stdout)[1:]:
        symbol = part[: part.index("'")]
        number = lambda pattern: max(map(int, re.findall(pattern, part)), default=0)
        found.append((symbol, {
            "registers": number(r"Used (\d+) registers"), "spilled bytes": number(r"(\d+) bytes spill stores"),
            "local bytes": number(r"(\d+) bytes stack frame"), "shared bytes": number(r"(\d+) bytes smem"),
            "threads": threads.get(symbol, 1024)}))
    names = subprocess.run(["c++filt"], input="\n".join(name for name, _ in found), stdout=subprocess.PIPE, text=True).stdout.splitlines()
    place = os.path.splitext(os.path.basename(entry["file"]))[0] if os.path.basename(entry["file"]) != "kernels.cu" else "nccl"
    return [(place + "." + plain(name), kernel) for name, (_, kernel) in zip(names, found)]


def occupancy(kernel):
    """The percentage of a multiprocessor's warps that may run."""
    in_block = -(-kernel["threads"] // 32)
    of_warp = -(-kernel["registers"] * 32 // 256) * 256
    by_registers = REGISTERS // 4 // of_warp * 4 // in_block  # each of its four parts has a quarter of them
    blocks = min(by_registers, WARPS // in_block, BLOCKS, SHARED_BYTES // (kernel["shared bytes"] + 1024))
    return 100 * blocks * in_block // WARPS


def table_of(build):
    """The most of each kernel's instances, by name."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        sources = [entry for entry in json.load(file) if entry["file"].endswith(".cu") and "/src/" in entry["file"]]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = [kernel for kernels in pool.map(kernels_of, sources) for kernel in kernels]
    rows = {}
    for name, kernel in found:
        kernel["occupancy"] = occupancy(kernel)
        row = rows.setdefault(name, {**kernel, "instances": 0})
        row["instances"] += 1
        for column, value in kernel.items():
            row[column] = (min if column == "occupancy" else max)(row[column], value)
    return rows


def read(path):
    """The rows of a table that was written."""
    with open(path, encoding="utf-8") as file:
        lines = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in file if line.startswith("| `")]
    return {cells[0].strip("`"): dict(zip(COLUMNS[1:], (int(cell.rstrip(" %")) for cell in cells[1:]))) for cells in lines}


def write(path, rows):
    with open(path, "w", encoding="utf-8") as file:
        file.write("# Registers and memory of the kernels\n\nWritten by the target `kernel_registers` (`registers.py`, for compute capability "
                   "9.0): the most of each\nkernel's instances, and the least occupancy. The test `kernels.cuda.registers` fails where a kernel has "
                   "more spills or\nlocal memory than here.\n\n")
        file.write("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS) + "\n")
        for name, row in sorted(rows.items()):
            file.write(f"| `{name}` | " + " | ".join(str(row[column]) for column in COLUMNS[1:]) + " % |\n")


def main():
    build, table = sys.argv[1:3]
    rows = table_of(build)
    if not rows:
        sys.exit("no kernels: a build with CUDA has some")
    if "--write" in sys.argv:
        return write(table, rows)
    allowed, wrong = read(table), 0
    for name, row in sorted(rows.items()):
        for column in ("spilled bytes", "local bytes"):
            most = allowed.get(name, {}).get(column, 0)
            if row[column] > most:
                print(f"{name}: {row[column]} {column}, where {table} has {most}: keep its values in registers, or, where that cannot be, "
                      "write the table anew (target kernel_registers)")
                wrong += 1
    print(f"{sum(row['instances'] for row in rows.values())} instances of {len(rows)} kernels, {wrong} wrong")
    sys.exit(1 if wrong else 0)


main()
