"""divisions.py COMMANDS NVCC SOURCE KERNEL...: none of these kernels of the source divides numbers of 64 bits, which takes a call of
some hundred instructions, and each of them has instances that read 16 bytes at once, in both types.

COMMANDS is the build's compile_commands.json.
"""

import json
import re
import sys

from contraction import ptx_of


def main(commands_path, nvcc, source, kernels):
    with open(commands_path, encoding="utf-8") as file:
        ptx = ptx_of(json.load(file), nvcc, source)
    parts = re.split(r"^\s*(?:\.visible |\.weak )?\.entry (\w+)", ptx, flags=re.MULTILINE)
    entries = dict(zip(parts[1::2], parts[2::2]))
    failed = False
    for kernel in kernels:
        instances = {name: text for name, text in entries.items() if f"{len(kernel)}{kernel}" in name}
        divisions = sum(len(re.findall(r"\b(?:div|rem)\.[su]64\b", text)) for text in instances.values())
        wide = [name for name, text in instances.items() if re.search(r"\bld\.global(?:\.nc)?\.v4\.[a-z]32\b", text)]
        print(f"{source}: {kernel}: {len(instances)} instances, {divisions} divisions of 64 bits, {len(wide)} read 16 bytes at once")
        failed = failed or divisions > 0 or len(wide) < 2
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
