"""spills.py COMMANDS: no kernel keeps more in local memory, or spills more of its registers there, than is allowed here.

COMMANDS: the build's compile_commands.json. Bytes are what ptxas says for compute capability 9.0, the most of a kernel's instances.
"""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

# kernel: (bytes spilled, bytes of local memory); of a kernel without a row neither.
ALLOWED = {
    "attention.rotate_pairs": (0, 32),
    "batch_norm.map_channels": (8, 8),
    "map.broadcast": (8, 8),
    "pooling.each_pixel": (28, 16),
    "random.run_elements": (4, 40),  # the double cosine keeps an array for angles that there are not
    "reduction.fold_items": (12, 16),
}


def command_of(entry, cubin):
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
    return kept + ["-cubin", "-arch=sm_90", "-Xptxas=-v", "-o", cubin]


def plain(name):
    """The kernel's own name, without namespace, arguments and those of its template."""
    found = re.search(r"([A-Za-z_]\w*)\s*(<|\()", re.sub(r"\(anonymous namespace\)::|(\w+::)+", "", re.sub(r"^void ", "", name)))
    return found.group(1) if found else name


def kernels_of(entry):
    """(name, bytes spilled, bytes of local memory) of each kernel of a source."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command_of(entry, os.path.join(folder, "cubin")), cwd=entry["directory"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{entry['file']}: {done.stdout}")
    parts = re.split(r"Compiling entry function '", done.stdout)[1:]
    number = lambda pattern, part: max(map(int, re.findall(pattern, part)), default=0)
    names = subprocess.run(["c++filt"], input="\n".join(part[: part.index("'")] for part in parts), stdout=subprocess.PIPE, text=True)
    source = os.path.splitext(os.path.basename(entry["file"]))[0]
    return [(f"{source}.{plain(name)}", number(r"(\d+) bytes spill stores", part), number(r"(\d+) bytes stack frame", part))
            for name, part in zip(names.stdout.splitlines(), parts)]


def main(commands):
    with open(commands, encoding="utf-8") as file:
        sources = [entry for entry in json.load(file) if entry["file"].endswith(".cu") and "/src/" in entry["file"]]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = [kernel for kernels in pool.map(kernels_of, sources) for kernel in kernels]
    wrong = set()
    for name, spilled, local in found:
        most_spilled, most_local = ALLOWED.get(name, (0, 0))
        if spilled > most_spilled or local > most_local:
            wrong.add(f"{name}: {spilled} bytes spilled and {local} of local memory, allowed are {most_spilled} and {most_local}: keep its "
                      "values in registers, or, where that cannot be, allow more in spills.py")
    print("\n".join([*sorted(wrong), f"{len(found)} instances, {len(wrong)} wrong"]))
    sys.exit(1 if wrong or not found else 0)


main(sys.argv[1])
