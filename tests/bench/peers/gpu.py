#!/usr/bin/env python3
"""Times training steps of a standard workload with PyTorch on one GPU: the peer of `lockstep bench step --device cuda`.

Usage: gpu.py [--workload NAME] [--precision bf16|fp32|tf32] [--mode MODE] [--sdpa KERNEL] [--steps N] [--cache FOLDER] [--limit SECONDS]
       gpu.py --compile-only --cache FOLDER ...      fills the folder, also with other workloads at the same time. So --mode auto is quick
                                                     then: max-autotune chooses by times, and wants the GPU for itself
       gpu.py --check FILE_H5 [--mode MODE]          compares losses with a file of peer_case, in float32; on the CPU if there is no GPU

PyTorch at its best, as workloads.py says, and: torch.compile of model and loss, bf16 by autocast, cuDNN's choice of convolutions by trial.
--mode and --sdpa auto try compile modes and the kernels of attention, each in a process of its own, and keep the fastest; what has not
ended after --limit seconds in all is left out. --mode quick leaves max-autotune for later. Each trial is kept in --cache, with Inductor's
and Triton's files: a further start measures the fastest again and goes on with the trials that are left. Once each has ended, the choice
is kept and not made again there: a tar of the folder serves other machines with the same GPU and PyTorch. --mode eager is without
torch.compile.

Prints one JSON document: medians over steps of times between events on the GPU. Exit code 77: no GPU, or no PyTorch; 75: no trial has
ended in the time.
"""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time

WORKLOADS = ["gpt-gpu", "resnet-gpu", "resnet50-gpu", "unet-gpu", "unet64-gpu"]
MODES = ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]  # auto: the first three, the slowest to compile last
SDPA = ["cudnn", "flash"]
UNMEASURED_STEPS = 10  # the choice of algorithms, and the capture of graphs
TIMED_UNDER_LOAD = "timed-under-load"  # a file in --cache: others ran on the GPU while Inductor timed configurations of kernels


def load():
    """What takes seconds to load, or is not here. After parse(), so that wrong arguments are reported anywhere."""
    global torch, workloads
    try:
        import torch

        import workloads
    except ImportError as missing:
        print(f"gpu.py: {missing}", file=sys.stderr)
        sys.exit(77)


def choose_sdpa(kernel):
    cuda = torch.backends.cuda
    for name, switch in (("cudnn", cuda.enable_cudnn_sdp), ("flash", cuda.enable_flash_sdp), ("efficient", cuda.enable_mem_efficient_sdp),
                         ("math", cuda.enable_math_sdp)):
        switch(name == kernel)


def step_flops(name):
    """Of products and convolutions, forward and backward; attention's whole square, though half of it may be masked."""
    from torch.utils.flop_counter import FlopCounterMode

    workload = workloads.WORKLOADS[name]
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        objective = workload.objective(workload.model(), "meta")
        batch = workload.batch(2)
        objective(*batch, *objective.draw(*batch)).backward()
    return counter.get_total_flops() * workload.samples / 2


def driver():
    try:
        return subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True,
                              check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def measure(args):
    """Of one mode and kernel, in this process."""
    torch.backends.cudnn.benchmark = True
    if args.precision != "fp32":  # what autocast leaves in float32 may take TF32
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    else:
        torch.backends.cudnn.allow_tf32 = False
    if args.sdpa != "default":
        choose_sdpa(args.sdpa)
    trainer = workloads.Trainer(args.workload, "cuda", args.precision, None if args.mode == "eager" else args.mode, args.loss_outside)
    trainer.make_batch(seed=2)
    begin = time.perf_counter()
    trainer.step()
    torch.cuda.synchronize()
    figures = {"model": args.workload, "precision": args.precision, "mode": args.mode, "sdpa": args.sdpa, "loss_outside": args.loss_outside,
               "compile_s": time.perf_counter() - begin}
    for _ in range(2 if args.compile_only else UNMEASURED_STEPS):
        trainer.step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(args.steps + 1)]
    events[0].record()
    for event in events[1:]:
        trainer.step()
        event.record()
    torch.cuda.synchronize()
    times = [begin.elapsed_time(end) for begin, end in zip(events, events[1:])]
    quartiles = statistics.quantiles(times, n=4) if len(times) > 1 else times * 3
    return {**figures, "step_ms": quartiles[1], "step_ms_quartiles": [quartiles[0], quartiles[2]], "step_ms_least": min(times),
            "peak_device_memory_bytes": torch.cuda.max_memory_allocated(), "reserved_device_memory_bytes": torch.cuda.max_memory_reserved()}


def in_process(args, mode, sdpa, folder, seconds):
    """The figures of this script with a mode and a kernel, or why there are none. Each kernel has its own cache: the name of a compiled
    function there does not tell which kernel attention was given."""
    command = [sys.executable, __file__, "--one", "--workload", args.workload, "--precision", args.precision, "--mode", mode,
               "--sdpa", sdpa, "--steps", str(args.steps)] + ["--loss-outside"] * args.loss_outside + ["--compile-only"] * bool(args.compile_only)
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / f"inductor-{sdpa}"), "TRITON_CACHE_DIR": str(folder / "triton")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as process:
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return {"mode": mode, "sdpa": sdpa, "failed": f"not done after {seconds:.0f} s", "cut": True}
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its compilers, too, which would run beside the next trial
    if process.returncode == 0:
        return json.loads(output.splitlines()[-1])
    return {"mode": mode, "sdpa": sdpa, "failed": (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]}


def read_json(path):
    """What a file has; nothing, if it is not there or was written by half."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def write_json(path, document):
    new = path.with_suffix(f".{os.getpid()}.new")
    new.write_text(json.dumps(document))
    new.replace(path)


def best_of(trials):
    return min((trial for trial in trials if "failed" not in trial), key=lambda trial: trial["step_ms"], default=None)


class Trials:
    """The first kernel of attention in each mode, then the other kernels in the fastest mode."""

    def __init__(self, modes, kernels, run, keep=lambda tried: None, earlier=()):
        """run: the figures of a mode and a kernel, or None, if there is no time; keep: is told of all after each of them; earlier: those of
        an earlier start, whose fastest is measured again, as a figure is one of this start."""
        self.modes, self.kernels, self.run, self.keep = modes, kernels, run, keep
        self.earlier = {(trial["mode"], trial["sdpa"]): trial for trial in earlier}
        self.tried = {}  # in this start

    def known(self):
        return {**self.earlier, **{key: trial for key, trial in self.tried.items() if not trial.get("cut") or key not in self.earlier}}

    def attempt(self, mode, sdpa, again=False):
        if (mode, sdpa) in self.known() and not again:
            return
        trial = self.run(mode, sdpa)
        if trial:
            self.tried[mode, sdpa] = trial
            self.keep([trial for trial in self.known().values() if not trial.get("cut")])

    def all(self):
        """The fastest of this start; None: nothing worked."""
        fastest = best_of(trial for trial in self.earlier.values() if trial["mode"] in self.modes)
        if fastest:
            self.attempt(fastest["mode"], fastest["sdpa"], again=True)
        pairs = [(mode, self.kernels[0]) for mode in self.modes]
        for pair in pairs:
            self.attempt(*pair)
        best = best_of(self.known()[pair] for pair in pairs if pair in self.known())
        others = [(mode, sdpa) for mode in ([best["mode"]] if best else self.modes) for sdpa in self.kernels[1:]]
        for pair in others:
            self.attempt(*pair)
        self.ended = all(pair in self.known() and not self.known()[pair].get("cut") for pair in pairs + others)
        return best_of(self.tried.values())


def forget_times_under_load(folder):
    """Of configurations that Inductor chose while others ran."""
    marker = folder / TIMED_UNDER_LOAD
    if marker.exists():
        for file in folder.glob("inductor-*/**/*.best_config"):
            file.unlink(missing_ok=True)
        marker.unlink(missing_ok=True)


def parse(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="gpt-gpu")
    parser.add_argument("--precision", choices=["bf16", "fp32", "tf32"], default="bf16", help="fp32: no TF32, as Lockstep")
    parser.add_argument("--mode", choices=["auto", "quick", "eager", *MODES], default="auto",
                        help="of torch.compile; quick: auto without max-autotune")
    parser.add_argument("--sdpa", choices=["auto", "default", *SDPA], default="auto", help="default: PyTorch's choice")
    parser.add_argument("--steps", type=int, default=40, help="steps measured")
    parser.add_argument("--cache", type=pathlib.Path, help="folder of compiled kernels and choices; none: a new one, which is removed")
    parser.add_argument("--limit", type=float, default=100, help="seconds for all trials")
    parser.add_argument("--compile-only", nargs="?", choices=["first", "rest", "all"], const="all",
                        help="each kernel of attention in each mode, with 3 steps whose times choose nothing; first: one of these")
    parser.add_argument("--loss-outside", action="store_true", help="compile the model without the loss, which is slower")
    parser.add_argument("--check", metavar="FILE_H5", help="of peer_case")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.compile_only and options.mode.startswith("max-autotune"):
        parser.error("--compile-only: max-autotune chooses by times, and wants the GPU for itself")
    return options


def main():
    args = parse()
    load()
    if args.check:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.backends.cudnn.allow_tf32 = False
        mode = {"auto": "default", "quick": "default", "eager": None}.get(args.mode, args.mode)
        name = workloads.workload_of(args.check)
        workloads.check(workloads.Trainer(name, device, mode=mode), args.check)
        assert step_flops(name) > 0
        return
    if not torch.cuda.is_available():
        print("gpu.py: no GPU", file=sys.stderr)
        sys.exit(77)
    import triton

    cores = len(os.sched_getaffinity(0))
    # Compilers of several workloads share the cores, and rarely all of them compile.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(2, cores // 5 if args.compile_only else cores)))
    if args.one:
        args.steps = 1 if args.compile_only else args.steps
        print(json.dumps(measure(args)))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # with the trial, whose session is its own
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.cache or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        if args.compile_only:
            (folder / TIMED_UNDER_LOAD).touch()
        else:
            forget_times_under_load(folder)
        choice = folder / f"{args.workload}-{args.precision}{'-loss-outside' * args.loss_outside}.json"
        partial = choice.with_suffix(".trials.json")
        here = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}

        def known(path):
            document = read_json(path)
            return document if {key: document.get(key) for key in here} == here else {}

        modes = {"auto": MODES[:2 if args.compile_only else 3], "quick": MODES[:2]}.get(args.mode, [args.mode])
        has_choice = args.precision == "bf16" and not args.workload.startswith("resnet")  # neither kernel takes float32
        kernels = [args.sdpa] if args.sdpa != "auto" else SDPA if has_choice else ["default"]
        chooses = args.mode in ("auto", "quick") and args.sdpa == "auto"
        chosen = known(choice) if chooses else {}
        if chosen.get("mode") in modes:
            modes, kernels, chooses = [chosen["mode"]], [chosen["sdpa"]], False
        else:  # it is for a start that may take that mode
            chosen = {}
        end = time.monotonic() + args.limit

        def run(mode, sdpa):
            left_s = end - time.monotonic()
            return in_process(args, mode, sdpa, folder, left_s) if left_s > 0 else None

        def keep(tried):
            if chooses:
                write_json(partial, {**here, "tried": tried})

        if args.compile_only:
            pairs = [(mode, kernels[0]) for mode in modes] + [(modes[0], sdpa) for sdpa in kernels[1:]]
            pairs = {"first": pairs[:1], "rest": pairs[1:], "all": pairs}[args.compile_only]
            now = tried = [trial for pair in pairs if (trial := run(*pair))]
            best, ended = best_of(now), len(now) == len(pairs)
        else:
            trials = Trials(modes, kernels, run, keep, known(partial).get("tried", []) if chooses else [])
            best, ended, now, tried = trials.all(), trials.ended, trials.tried.values(), [*trials.known().values()]
        if best is None:
            late = not ended or any(trial.get("cut") for trial in now)
            reasons = [trial["failed"] for trial in tried if "failed" in trial] or ["nothing is left to compile"]
            print(f"gpu.py: {args.workload}: {'no trial has ended: a larger --limit' if late else reasons[-1]}", file=sys.stderr)
            sys.exit(75 if late else 1 if tried else 77)
        try:
            flops = step_flops(args.workload)
        except Exception as error:  # whatever it is, the times are worth more
            print(f"gpu.py: {args.workload}: its flops are not counted: {error}", file=sys.stderr)
            flops = None
        figures = {**best, "samples_per_second": workloads.WORKLOADS[args.workload].samples * 1e3 / best["step_ms"],
                   "step_flops": flops, **here, "cuda": torch.version.cuda,
                   "cudnn": torch.backends.cudnn.version(), "triton": triton.__version__,
                   "driver": driver(), "tried": [{key: trial.get(key) for key in ("mode", "sdpa", "step_ms", "compile_s", "failed")}
                                                 for trial in tried], "all_tried": ended and bool(chosen or args.mode != "quick")}
        if chosen:
            figures["chosen_before"] = chosen["tried"]
        if chooses and figures["all_tried"] and not args.compile_only:  # a mode that time has cut might be the fastest
            write_json(choice, figures)
            partial.unlink(missing_ok=True)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
