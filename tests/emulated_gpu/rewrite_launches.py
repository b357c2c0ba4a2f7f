"""rewrite_launches.py SOURCE RESULT: a .cu or .cuh file as C++ for the CPU.

    kernel<A><<<grid, block, bytes, stream>>>(x, y)
becomes a call of emulated_gpu::launch with the kernel, as a function of its arguments, and these;
`extern __shared__ T name[];` a pointer to the block's memory; and behind `__shared__ T name[size];` comes a call of
begin_shared. Lines stay where they are.
"""

import re
import sys


def matching(text, at, opening, closing):
    """The place of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in opening) - (text[i] in closing)
        if depth == 0:
            return i
    raise SystemExit(f"no end of {text[at:at + 40]!r}")


def kernel_start(text, end):
    """Where the kernel's name begins that ends before `end`, template arguments included."""
    i = end
    while text[i - 1].isspace():
        i -= 1
    if text[i - 1] == ">":
        depth = 0
        while True:
            i -= 1
            depth += (text[i] == ">") - (text[i] == "<")
            if depth == 0:
                break
    return re.search(r"\w+$", text[:i]).start()


def parts_of(arguments):
    """Arguments of a call, split at the commas outside brackets."""
    parts, depth, begin = [], 0, 0
    for i, c in enumerate(arguments):
        depth += (c in "([{") - (c in ")]}")
        if c == "," and depth == 0:
            parts.append(arguments[begin:i])
            begin = i + 1
    return parts + [arguments[begin:]]


def with_beginning(declaration):
    """Shared memory of a fixed size, which begins with each block."""
    names = [re.search(r"(\w+)\s*(\[|$)", part.strip()).group(1) for part in parts_of(declaration.group(1))]
    return declaration.group(0) + "".join(f" lockstep::emulated_gpu::begin_shared(&{name}, sizeof {name});" for name in names)


def rewrite(text):
    while (begin := text.find("<<<")) >= 0:
        end = text.index(">>>", begin)
        first = kernel_start(text, begin)
        kernel, shape = text[first:begin], parts_of(text[begin + 3 : end])
        if len(shape) != 4:
            raise SystemExit(f"{kernel.strip()}: a launch names grid, block, shared bytes and stream")
        opening = text.index("(", end)
        closing = matching(text, opening, "(", ")")
        arguments = text[opening + 1 : closing]
        name = " ".join(kernel.split()).replace('"', "'")
        # Who asks for shared memory may have to be known. A template whose arguments follow from the call has no address.
        known = shape[2].strip() != "0" and re.fullmatch(r"\s*\w+\s*", kernel)
        function = f"reinterpret_cast<const void*>(+{kernel.strip()})" if known else "nullptr"
        launch = (
            f'lockstep::emulated_gpu::launch("{name}", {function}, dim3({shape[0]}), dim3({shape[1]}), {shape[2]}, '
            f"{shape[3]}, [=](const auto&... with) {{ {kernel.strip()}(with...); }}"
            + (f", {arguments})" if arguments.strip() else ")")
        )
        # As many lines as before.
        launch += "\n" * (text[first : closing + 1].count("\n") - launch.count("\n"))
        text = text[:first] + launch + text[closing + 1 :]
    text = re.sub(r"(?<!extern )__shared__ ([^;]+);", with_beginning, text)
    return re.sub(
        r"extern __shared__ (\w+) (\w+)\[\];",
        r"\1* const \2 = static_cast<\1*>(lockstep::emulated_gpu::shared_memory());",
        text,
    )


if __name__ == "__main__":
    source, result = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        text = rewrite(file.read())
    with open(result, "w", encoding="utf-8") as file:
        file.write(f'#line 1 "{source}"\n{text}')
