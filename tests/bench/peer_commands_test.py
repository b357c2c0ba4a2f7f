#!/usr/bin/env python3
"""peer_commands_test.py: gpu.py and kernel_list.py take every command that plans.py has for them, ncu is asked for kernels that there are,
and gpu.py's trials go on where a limit has cut them. No PyTorch and no GPU."""
import ast
import contextlib
import importlib.util
import io
import pathlib
import re
import sys
import tempfile

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

# --- trials ---------------------------------------------------------------------------------------------------------------------
times = {("default", "cudnn"): 9, ("default", "flash"): 8, ("reduce-overhead", "flash"): 7, ("max-autotune", "flash"): 6}


def trials(room, earlier=(), modes=gpu.MODES[:3]):
    """With time for so many."""
    log, kept = [], []

    def run(mode, sdpa):
        if len(log) > room:
            return None
        log.append((mode, sdpa))
        figures = {"step_ms": times.get((mode, sdpa), 10)} if len(log) <= room else {"failed": "not done", "cut": True}
        return {"mode": mode, "sdpa": sdpa, **figures}

    made = gpu.Trials(modes, gpu.SDPA, run, lambda tried: kept.append(tried), earlier)
    return made, made.all(), log, (kept or [[]])[-1]


made, best, log, kept = trials(9)
assert log == list(times) and made.ended and best["step_ms"] == 6 and len(kept) == 4, (log, best)
made, best, log, kept = trials(3)  # the last one is cut
assert log == list(times) and not made.ended and best["step_ms"] == 7 and len(kept) == 3, (log, best, kept)
made, best, log, kept = trials(9, kept)  # the fastest again, then what is left
assert log == [("reduce-overhead", "flash"), ("max-autotune", "flash")] and made.ended and best["step_ms"] == 6 and len(kept) == 4, log
made, best, log, kept = trials(0, kept)  # no time even for that: what was known is not lost
assert best is None and len(kept) == 4, (best, kept)
quick, _, log, kept = trials(9, modes=gpu.MODES[:2])  # and then the others
assert quick.ended and log == list(times)[:3] and trials(9, kept)[2] == list(times)[2:], log
assert trials(9, trials(9)[3], gpu.MODES[:2])[2] == [("reduce-overhead", "flash")]

# --- what was chosen under load -------------------------------------------------------------------------------------------------
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    chosen = folder / "inductor-cudnn" / "ab" / "kernel.best_config"
    chosen.parent.mkdir(parents=True)
    chosen.touch()
    gpu.forget_times_under_load(folder)
    assert chosen.exists()
    (folder / gpu.TIMED_UNDER_LOAD).touch()
    gpu.forget_times_under_load(folder)
    assert not chosen.exists() and not (folder / gpu.TIMED_UNDER_LOAD).exists()
    (folder / "half.json").write_text('{"tri')
    assert gpu.read_json(folder / "half.json") == gpu.read_json(folder / "none.json") == {}
print("all held")
