"""contraction.py COMMANDS NVCC SOURCE...: no product of these sources is fused with a sum unless the source
says fma, so that an element has the same bits in a pack and in the tail.

COMMANDS is the build's compile_commands.json. In PTX a product or a sum that names its rounding (mul.rn.f32)
stays what it is; one that does not (mul.f32) may be fused by the assembler.
"""

import json
import re
import shlex
import subprocess
import sys
import tempfile


def ptx_of(commands, nvcc, source):
    for entry in commands:
        if entry["file"].endswith(source):
            break
    else:
        raise SystemExit(f"{source}: the build has no command for it")
    words = iter(shlex.split(entry["command"]))
    flags = []
    for word in words:
        if word in ("-o", "-MF", "-MT", "-MQ"):
            next(words)
        elif not (word.startswith("--generate-code") or word in ("-c", "-MD", "-MMD") or word.startswith("-gencode")):
            flags.append(word)
    while flags and not flags[0].startswith("-"):  # a launcher, the compiler
        flags.pop(0)
    with tempfile.NamedTemporaryFile(suffix=".ptx") as made:
        subprocess.run([nvcc, *flags, "-arch=compute_80", "-ptx", "-o", made.name], check=True, cwd=entry["directory"])
        with open(made.name, encoding="utf-8") as file:
            return file.read()


def main(commands_path, nvcc, sources):
    with open(commands_path, encoding="utf-8") as file:
        commands = json.load(file)
    failed = False
    for source in sources:
        ptx = ptx_of(commands, nvcc, source)
        rounded = len(re.findall(r"\bmul\.rn\.(?:ftz\.)?f32\b", ptx))
        loose = re.findall(r"\b(?:mul|add|sub)\.(?:ftz\.)?f(?:32|64)\b", ptx)
        print(f"{source}: {rounded} products of fixed rounding, {len(loose)} sums and products that may be fused")
        failed = failed or rounded == 0 or bool(loose)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
