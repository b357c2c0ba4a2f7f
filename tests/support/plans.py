"""What tests/gpu.sh runs: plans, each a list of stages, each a list of commands. run_list.py runs them.

In commands {bundle} stands for the folder of the bundle, {work} for the folder that keeps what a plan makes, {limit_s} for the seconds that
a command may take by itself: END_S less than it is given, in which it ends and writes what it has.
"""
import dataclasses
import os
import re
import subprocess

CPU_TESTS = r"^(comm|ddp|checkpoint|golden|train)(\..+)?\.np[124]$"  # --cpu
END_S = 15
CHECK_TIMEOUT_S = 60
TEST_TIMEOUT_S = 120
PEER_S = 55       # loads PyTorch, and tries modes for 40 s
LATE_CODE = 75    # EX_TEMPFAIL


@dataclasses.dataclass(frozen=True)
class Entry:
    """One command. It passes by exit code 0, by 77 (skip_code) it says that it cannot be asked here, by LATE_CODE that its time was short."""
    name: str
    command: list
    limit_s: float = 60
    min_s: float = 0    # it is left for later where there is less time
    json: bool = False    # it prints one JSON document (of what it prints, the last line may be it): its figures
    csv: bool = False     # it prints rows, as ncu does: its figures
    shows: bool = False   # the report has the end of its output where it passes, too
    gpu: bool = True      # it is skipped without one
    needs: str = ""       # a program on PATH, without which it is skipped
    environment: dict = dataclasses.field(default_factory=dict)
    skip_code: int = 77
    skip_text: str = ""   # a failure whose output has this (a regular expression) says the same


@dataclasses.dataclass(frozen=True)
class Stage:
    """Entries, so many at once."""
    name: str
    yields: str             # why it runs
    entries: list
    ends: float = 1         # the share of the plan's time until which it may run: what hangs costs the others nothing
    jobs: int = 1
    alone: bool = False     # one at a time, after all that runs in the background is over: a measurement
    background: bool = False  # the next stage starts beside it
    counts: bool = True     # whether its failures make the exit code


@dataclasses.dataclass(frozen=True)
class Plan:
    """Stages in order. One with a name keeps its results: a second start does what the first has not done."""
    name: str
    limit_s: float          # without the archives: ARCHIVE_S of run_list.py
    stages: list
    beside: tuple = ()      # a command that runs all the time, and the file that its output goes to


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a plan is made for."""
    bundle: str
    tests: list             # tests/list.json
    gpu_mib: int            # the memory of the smallest GPU; 0 without one
    jobs: int
    size: str               # real, small (an emulated GPU), no (no checklist)


def filled(text, values):
    """Where text has a placeholder of `values`."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def shown(entry):
    """Its command for people, the same in each start."""
    return filled(" ".join(entry.command).replace("{bundle}/", ""), {"limit_s": f"{entry.limit_s - END_S:.0f}"})


def is_peer(entry):
    return any("/peers/" in word for word in entry.command)


def checklist(machine):
    """What is asked of a GPU first. The script itself names them."""
    script = os.path.join(machine.bundle, "tests", "support", "checklist.sh")
    listed = subprocess.run(["bash", script, "list"], stdout=subprocess.PIPE, text=True, check=False).stdout.split()
    return [check(machine, "checklist." + name, name, shows=True) for name in listed]


def check(machine, name, asked, **more):
    command = ["bash", "{bundle}/tests/support/checklist.sh", asked] + (["small"] if machine.size == "small" else [])
    return Entry(name, command, CHECK_TIMEOUT_S, **more)


def tests(listed):
    return [Entry(test["name"], test["command"], test["timeout_s"], gpu="gpu" in test["labels"], environment=test["environment"],
                  skip_code=test["skip_code"]) for test in listed]


def gpu_tests(machine, cpu=False):
    chosen = [test for test in machine.tests if "gpu" in test["labels"]]
    if cpu:
        chosen += [test for test in machine.tests if "gpu" not in test["labels"] and re.search(CPU_TESTS, test["name"])]
    return tests([{**test, "timeout_s": min(test["timeout_s"], TEST_TIMEOUT_S)} for test in chosen])


# --- measurements ---------------------------------------------------------------------------------------------------------------
def ours(name, workload, *more, precision="bf16", steps=40, limit_s=60):
    return Entry(name, ["lockstep", "bench", "step", "--device", "cuda", "--json", *(["--steps", str(steps)] if steps else []),
                        "--workload", *workload, "--precision", precision, *more], limit_s, json=True)


def pytorch(name, workload, *more, limit_s=PEER_S, min_s=45):
    """Which tries compile modes and kernels of attention until most of its time is over, and keeps the fastest."""
    return Entry(name, ["python3", "{bundle}/tests/bench/peers/gpu.py", "--workload", workload, "--precision", "bf16",
                        "--limit", "{limit_s}", *more], limit_s, min_s=min_s, json=True)


def kernels(name, command, limit_s=60, **more):
    """Of a command without --steps."""
    return Entry(name, ["python3", "{bundle}/tests/bench/kernel_list.py", "--", *command], limit_s, json=True, **more)


def small_model(workload, **keys):
    return [workload, *(f"--set=model.{key}={value}" for key, value in keys.items())]


# Of each workload the words behind --workload; small: for an emulated GPU, which also leaves out what shows nothing there.
WORKLOADS = {
    "real": {"gpt": ["gpt-gpu"], "resnet": ["resnet-gpu"], "resnet50": ["resnet50-gpu"], "unet": ["unet-gpu"], "unet64": ["unet64-gpu"]},
    "small": {"gpt": small_model("gpt-cpu", layers=1, channels=32, context=32), "resnet": small_model("resnet-cpu", blocks=1, width=8),
              "unet": small_model("unet-cpu", image_size=4, model_channels=32, channel_mult=1, num_res_blocks=1, attention_resolutions=1,
                                  num_heads=1)},
}


# Of the loss and the network of jobs/diffusion-cifar.ini, where they are not those of unet-gpu.
DIFFUSION_JOB = ["--set=model.out_channels=6", "--set=diffusion.variance=learned_range", "--set=diffusion.loss=rescaled_mse",
                 "--set=diffusion.schedule=cosine", "--set=diffusion.steps=4000"]


def odd_vocabulary(machine):
    return "--set=model.vocab=" + ("257" if machine.size == "small" else "50257")


def suites(machine, cpu, benchmarks):
    """Without --plan."""
    stages = []
    if machine.size != "no":
        stages.append(Stage("checklist", "the same bits twice, in graphs, with NCCL, at odd sizes", checklist(machine), 0.4, machine.jobs))
    stages.append(Stage("tests", "GPU code against CPUs'", gpu_tests(machine, cpu), 0.75 if benchmarks else 1, machine.jobs))
    if benchmarks:
        entries = []
        for name in ("gpt-gpu", "resnet-gpu"):  # in turn, so that ours and the peer's see the same machine
            entries += [ours(f"{name}.lockstep.1", [name], limit_s=120), pytorch(f"{name}.pytorch", name, limit_s=120),
                        ours(f"{name}.lockstep.2", [name], limit_s=120)]
        entries += [ours(f"{name}.profile", [name], "--profile", limit_s=120) for name in ("gpt-gpu", "resnet-gpu")]
        entries.append(ours("gpt-gpu.fp32", ["gpt-gpu"], precision="fp32", limit_s=120))
        stages.append(Stage("benchmarks", "a step, beside PyTorch's", entries, alone=True, counts=False))
    return Plan("", 430, stages)


def matching(machine, pattern):
    chosen = [test for test in machine.tests if re.search(pattern, test["name"])]
    return Plan("", 430, [Stage("tests", "those that --match names", tests(chosen), jobs=machine.jobs)])


def figures(machine):
    """All figures of one GPU. Peers compile on idle cores while the GPU shows that its bits are right.

    `ends` leave each peer of a ratio its whole time, of 540 seconds, too, if ours takes 8: PyTorch compiles until 0.27, then come four ratios,
    then what each of our choices costs. What ends early leaves its time to those after it, and what had none has what is left at the end:
    measurements first. The stage that ends at 0 has only that."""
    small = machine.size == "small"
    work = WORKLOADS["small" if small else "real"]
    steps, fewer = (1, 1) if small else (40, 12)  # fewer: of steps that take long
    # They share the memory: estimates are 5 (resnet) to 17 GB (gpt.loss_outside) for what compiles, and up to 7 for a check.
    compilers = min(6, max(1, machine.gpu_mib // (16 << 10)))
    jobs = machine.jobs if compilers == 6 else max(1, machine.jobs * 3 // 4)
    cache = ["--cache", "{work}/compiled"]
    before = ("--loss-outside", "--mode", "default", "--sdpa", "default")  # as it was compared with Lockstep
    quick = {name: (f"{name}-gpu", "--mode", "quick") for name in ("unet", "gpt", "resnet", "unet64", "resnet50")}
    # The longest first; five and more at once took all of their time on 16 cores.
    compiled = [pytorch(f"compile.{name}.{part}", *quick[name], *cache, "--compile-only", part, limit_s=165)
                for part in ("first", "rest") for name in ("unet", "gpt", "resnet")]

    def us(name, *more, **how):
        return ours(name, work[name.split(".", maxsplit=1)[0]], *more, **{"steps": steps, **how})

    def peer(name):
        return pytorch(f"{name}.pytorch.1", *quick[name], *cache)

    def autotuned(name):
        """Goes on with the trials of peer()."""
        return pytorch(f"{name}.pytorch.2", f"{name}-gpu", *cache, limit_s=135, min_s=60)

    def sanitized(tool, suite):
        command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "1", "--target-processes", "all"]
        return Entry(f"{tool}.{suite}", [*command, "{bundle}/tests/bin/test.gpu", "--run_test=" + suite, "--run_test=!@large"],
                     needs=command[0], skip_text="Device not supported.*")

    # stdbuf: a line a second, also of one that is ended.
    return Plan("figures", 560, beside=(["stdbuf", "-oL", "nvidia-smi", "dmon", "-s", "pucm", "-d", "1", "-o", "T"], "dmon.txt"), stages=[
        Stage("machine", "which card, with which clocks; what a copy and a product of random numbers reach", ends=0.05, alone=True, entries=[
            Entry("nvidia_smi", ["nvidia-smi", "-q"], 10),
            *([] if small else [us("gpt.profile", "--profile", steps=4)])]),
        Stage("compile", "peers that compile in seconds when measured: one mode of each, then the others", ends=0.27, jobs=compilers,
              background=True, counts=False, entries=compiled),
        Stage("checklist", "the same bits twice, in graphs, with NCCL, at odd sizes, in shards", checklist(machine), 0.21, jobs),
        Stage("sanitizer", "accesses out of bounds, and races within blocks", jobs=jobs, ends=0.27, entries=[
            *(sanitized("memcheck", suite) for suite in ("products", "sequences", "losses", "norms", "images")),
            *(sanitized("racecheck", suite) for suite in ("sequences", "norms"))]),
        Stage("gpt", "the ratio to PyTorch", ends=0.41, alone=True, entries=[us("gpt.lockstep.1"), peer("gpt"), us("gpt.lockstep.2")]),
        Stage("resnet", "the ratio for images", ends=0.545, alone=True, entries=[
            us("resnet.lockstep.1"), peer("resnet"), us("resnet.lockstep.2")]),
        Stage("unet", "the ratio for diffusion, with a mean squared error", ends=0.67, alone=True, entries=[us("unet.lockstep"), peer("unet")]),
        Stage("variants", "what 50257, shards and float32 cost; job: the network and loss of jobs/diffusion-cifar.ini", ends=0.82, alone=True,
              entries=[us("gpt.vocabulary_50257", odd_vocabulary(machine)), us("gpt.8_shards", "--shards", "8", steps=fewer),
                       us("unet.8_shards", "--shards", "8", steps=fewer), us("unet.job", *DIFFUSION_JOB), *([] if small else [
                           us("unet64.lockstep", steps=fewer), us("resnet50.lockstep", steps=fewer),
                           us("unet.job_8_shards", *DIFFUSION_JOB, "--shards", "8", steps=fewer),
                           us("unet.fp32", precision="fp32", steps=fewer),
                           us("unet.fp32_8_shards", "--shards", "8", precision="fp32", steps=fewer)])]),
        Stage("kernels", "where the time of a plain step goes, by kernel", ends=0.92, alone=True, entries=[
            kernels("gpt.vocabulary_50257.kernels", us("gpt", odd_vocabulary(machine), "--graph", "false", steps=0).command),
            *(kernels(f"{name}.kernels", us(name, "--graph", "false", steps=0).command) for name in ("unet", "gpt", "resnet"))]),
        Stage("training", "a step of `train`, with two slots, beside that of bench; memory nodes in graphs", ends=0.97, alone=True, entries=[
            check(machine, "gpt.train", "loop", json=True), check(machine, "gpt.train_without_graphs", "loop_plain", json=True)]),
        Stage("ranks", "a step of two ranks on one GPU, what is exposed, and the same bits", alone=True, entries=[
            check(machine, f"{name}.two_ranks", f"ranks_{name}", json=True) for name in ("gpt", "unet")]),
        Stage("peers", "PyTorch's slowest mode to compile; larger networks; what computing the loss outside cost", ends=0, alone=True,
              entries=[autotuned("gpt"), peer("unet64"), peer("resnet50"), *map(autotuned, ("unet", "resnet")),
                       pytorch("gpt.loss_outside.pytorch", "gpt-gpu", *before, *cache)]),
    ])


def doubtful_commands(earlier):
    """Those whose steps differ by more than 2 % between two starts, or by quartiles within one."""
    times, found = {}, set()
    for entry in earlier.values():
        figures = entry.get("figures") or {}
        if not figures.get("step_ms"):
            continue
        times.setdefault(entry["command"], []).append(figures["step_ms"])
        least, most = figures.get("step_ms_quartiles", (1, 1))
        if most > 1.02 * least:
            found.add(entry["command"])
    return found | {command for command, all_ms in times.items() if max(all_ms) > 1.02 * min(all_ms)}


def explain(machine, earlier):
    """What the figures leave open, then tests. `earlier`: entries of `figures` by name, as the report has them. What each candidate for a
    product takes is missing: there is no `lockstep bench products --tune` yet."""
    work = WORKLOADS["small" if machine.size == "small" else "real"]
    doubtful = doubtful_commands(earlier)
    again = {}  # by command
    for entry in (entry for stage in figures(machine).stages if stage.alone for entry in stage.entries):
        if shown(entry) in doubtful:
            again.setdefault(shown(entry), entry)

    def counters(workload, kernel, *more):
        command = ["ncu", "--set", "basic", "--page", "raw", "--clock-control", "none", "--csv", "--target-processes", "all",
                   "--launch-count", "8", "--kernel-name", f"regex:^({kernel})$"]
        step = ours("", work[workload], "--graph", "false", *more, steps=1).command
        return Entry(f"ncu.{kernel}", [*command, *step], 30, needs=command[0], csv=True, skip_text="LibraryNotLoaded|ERR_NVGPUCTRPERM")

    def in_graph(name):
        return kernels(f"{name}.graph_kernels", ours("", work[name], "--graph", "true", steps=0).command, 25)

    # By itself, with the folders that gpu.py gives its trials.
    peer = ["python3", "{bundle}/tests/bench/peers/gpu.py", "--one", "--workload", "gpt-gpu", "--mode", "default", "--sdpa", "cudnn"]
    folders = {"TORCHINDUCTOR_CACHE_DIR": "{work}/compiled/inductor-cudnn", "TRITON_CACHE_DIR": "{work}/compiled/triton"}
    return Plan("explain", 120, [
        Stage("pytorch", "the kernels of PyTorch's step", ends=0.5, alone=True, entries=[
            kernels("gpt.pytorch_kernels", peer, environment=folders)]),
        Stage("counters", "how close single kernels are to the card's limits", ends=0.7, alone=True, entries=[
            counters("gpt", "layer_gradients"), counters("gpt", "forward"), counters("unet", "normalise_group"),
            counters("gpt", "copy_rows", odd_vocabulary(machine))]),
        Stage("again", "figures that differed by more than 2 %", ends=0.85, alone=True, entries=[
            dataclasses.replace(entry, name=f"{entry.name}.again.{number}") for entry in again.values() for number in (1, 2)]),
        Stage("kernels", "kernels inside graphs", ends=0.95, alone=True, entries=[in_graph("gpt"), in_graph("resnet")]),
        Stage("tests", "GPU code against CPUs'", gpu_tests(machine), 1, machine.jobs)])
