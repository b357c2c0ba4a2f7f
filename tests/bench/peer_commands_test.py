#!/usr/bin/env python3
"""peer_commands_test.py: gpu.py and kernel_list.py take every command that plans.py has for them, and ncu is asked for kernels that there
are. No PyTorch and no GPU."""
import ast
import contextlib
import importlib.util
import io
import pathlib
import re
import sys

source = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(source / "tests" / "support"))
import plans


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gpu = load(source / "tests" / "bench" / "peers" / "gpu.py")
kernel_list = load(source / "tests" / "bench" / "kernel_list.py")


def taken(parse, words):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            return parse(words)
        except SystemExit:
            raise AssertionError(f"refused: {' '.join(words)}: {said.getvalue()}") from None


assigned = {node.targets[0].id: node.value for node in ast.parse((source / "tests/bench/peers/workloads.py").read_text()).body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)}
names = sorted(key.value for key in assigned["WORKLOADS"].keys if key.value.endswith("-gpu"))
assert gpu.WORKLOADS == names, names

# --- commands -------------------------------------------------------------------------------------------------------------------
counts = {"gpu.py": 0, "kernel_list.py": 0, "ncu": 0}
kernels = "".join(path.read_text() for path in (source / "src" / "kernels" / "cuda").glob("*.cu"))


def check(words):
    for at, word in enumerate(words):
        if word == "--kernel-name":
            counts["ncu"] += 1
            name = re.fullmatch(r"regex:\^\((\w+)\)\$", words[at + 1])[1]
            assert re.search(rf"__global__[^;{{]*\b{name}\(", kernels), f"no kernel is called {name}"
        if word.endswith("/kernel_list.py"):
            counts["kernel_list.py"] += 1
            check([*taken(kernel_list.parse, words[at + 1:]).command, "--steps", "6"])
            return
        if word.endswith("/peers/gpu.py"):
            counts["gpu.py"] += 1
            options = taken(gpu.parse, words[at + 1:])
            assert options.limit > 0, words
            return


for size in ("real", "small"):
    for gpu_mib in (0, 80 << 10, 140 << 10):
        machine = plans.Machine(str(source), [], gpu_mib, 4, size)
        figures = plans.figures(machine)
        # As if each figure had spread.
        earlier = {entry.name: {"command": plans.shown(entry), "figures": {"step_ms": 4, "step_ms_quartiles": [3, 5]}}
                   for stage in figures.stages for entry in stage.entries if entry.json}
        for plan in (figures, plans.explain(machine, earlier), plans.suites(machine, True, True)):
            for entry in (entry for stage in plan.stages for entry in stage.entries):
                check([plans.filled(word, {"bundle": str(source), "work": "/w", "limit_s": "5"}) for word in entry.command])
            names = [entry.name for stage in plan.stages for entry in stage.entries]
            assert len(names) == len(set(names)), names
assert counts["gpu.py"] > 50 and counts["kernel_list.py"] > 10 and counts["ncu"] > 10, counts
with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
    raise AssertionError(gpu.parse(["--compile-only", "--mode", "max-autotune"]))  # beside others

print("all held")
