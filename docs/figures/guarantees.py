#!/usr/bin/env python3
"""guarantees.py LOCKSTEP FAULT_LIBRARY OUT.svg: does to runs what a cluster does, and draws what they did.

One configuration, digits on an mlp with dropout and EMA weights, is trained on one rank. Each other run differs from
it in one way, or is struck by a fault and resumed by the same command. A row says how the run ended, and what
`lockstep diff` finds between its last checkpoint and that of the first run. A row that does not hold ends this script with
exit code 1.
FAULT_LIBRARY is libfault.so of the build (tests/faults/README.md). Takes about a minute.
"""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from svg import Figure

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGURATION = """[model]
name = mlp
sizes = 64 256 256 10
dropout = 0.1
[data]
train = digits.h5
eval_fraction = 0.1
[train]
steps = 240
global_batch = 48
shards = 24
[optimizer]
clip = 1
schedule = constant
[ema]
rates = 0.99
[checkpoint]
every = 40
[fault]
hang_timeout_s = 5
"""
MPIRUN = ["mpirun"]
SETTINGS = dict(setting.split("=", 1) for setting in subprocess.run(
    ["bash", "-c", 'source jobs/mpi.sh && printf "%s\\n" "${mpi_settings[@]}"'], cwd=REPOSITORY, capture_output=True, text=True,
    check=True).stdout.split())


class Lab:
    """A scratch folder with the data and the configuration."""

    def __init__(self, program, library, folder):
        self.program, self.library, self.folder = program, library, folder
        (folder / "run.ini").write_text(CONFIGURATION)
        self.lockstep("prepare", "csv", REPOSITORY / "share/data/digits.csv.gz", "--shape", "1,8,8", "--out", "digits.h5")

    def lockstep(self, *words):
        return subprocess.run([self.program, *map(str, words)], cwd=self.folder, capture_output=True, text=True)

    def command(self, ranks, name, settings):
        sets = [word for setting in settings for word in ("--set", setting)]
        return [*MPIRUN, "-n", str(ranks), self.program, "train", "run.ini", "--run", name, *sets]

    def train(self, ranks, name, *settings, fault=""):
        """The exit code, and the line of error or the last line."""
        environment = os.environ | SETTINGS
        command = self.command(ranks, name, settings)
        if fault:
            environment["LOCKSTEP_FAULT"] = fault
            command[len(MPIRUN) + 2:len(MPIRUN) + 2] = ["env", f"LD_PRELOAD={self.library}"]
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def strike(self, ranks, name, how):
        """Starts a run without an end, and calls how(launcher, pids of the ranks) once it has a checkpoint."""
        launcher = subprocess.Popen(self.command(ranks, name, ["train.steps=1000000000", "checkpoint.keep=100000"]),
                                    cwd=self.folder, env=os.environ | SETTINGS, text=True, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT)
        checkpoints = self.folder / name / "checkpoints"
        while not list(checkpoints.glob("step-*.h5")) and launcher.poll() is None:
            time.sleep(0.02)
        children = subprocess.run(["pgrep", "-P", str(launcher.pid), "-x", "lockstep"], capture_output=True, text=True)
        how(launcher, [int(pid) for pid in children.stdout.split()])
        output = launcher.communicate()[0]
        for late in checkpoints.glob("step-*.h5"):  # the run had no end: resume it before that of the others
            if late.name >= "step-000000240.h5":
                late.unlink()
        return launcher.returncode, output

    def same(self, name):
        """What diff says of a run and the first one."""
        done = self.lockstep("diff", "first/checkpoints/latest", f"{name}/checkpoints/latest")
        return done.returncode == 0, done.stdout.strip()


def kill(number):
    return lambda launcher, ranks: os.kill(ranks[-1], number)


def main():
    program, library, out = (str(Path(word).resolve()) for word in sys.argv[1:])
    rows, ok = [], True
    with tempfile.TemporaryDirectory(prefix="lockstep-guarantees.") as folder:
        lab = Lab(program, library, Path(folder))
        code, text = lab.train(1, "first")
        if code:
            sys.exit(f"the first run failed: {text}")
        bits = re.search(r"(\d+) tensors, (\d+) elements", lab.lockstep("diff", "first/checkpoints/latest",
                                                                        "first/checkpoints/latest").stdout)

        def row(what, ended, name, held=True):
            nonlocal ok
            same, said = lab.same(name)
            ok = ok and same and held
            rows.append((what, ended, same and held))
            print(f"{what}: {ended}: {said}", flush=True)

        for ranks, what, settings in ((2, "2 ranks", ()), (5, "5 ranks, a number that divides nothing", ()),
                                      (8, "8 ranks, optimizer state divided (ZeRO-1)", ("ddp.sharded_optimizer=true",)),
                                      (3, "3 ranks, without overlap", ("ddp.mode=flat",))):
            code, text = lab.train(ranks, f"ranks-{ranks}", *settings)
            row(what, "done" if code == 0 else f"exit code {code}", f"ranks-{ranks}", code == 0)

        def struck(what, ended, name, wanted, before, resumed_on, says=""):
            """wanted: the exit code; None: any but 0. says: what the error has to say."""
            code, text = before
            held = (code == wanted or (wanted is None and code != 0)) and re.search(says, text) is not None
            code, text = lab.train(resumed_on, name)
            row(what, ended, name, held and code == 0 and "going on after step" in text)

        struck("SIGKILL of a rank of 5", "resumed on 3 ranks", "killed", None, lab.strike(5, "killed", kill(signal.SIGKILL)), 3)
        struck("SIGKILL in the middle of a save", "the checkpoint before is complete; resumed", "middle", None,
               lab.train(2, "middle", fault="rank=1 path=step-000000120 call=pwrite kill=middle"), 2)
        struck("the disk is full", "one line, exit code 3; resumed", "full", 3,
               lab.train(2, "full", fault="path=step-000000120 call=pwrite errno=ENOSPC always"), 2, "No space left")
        struck("a rank hangs (SIGSTOP)", "named, exit code 5; resumed", "hung", 5,
               lab.strike(2, "hung", kill(signal.SIGSTOP)), 1, "rank 1 .*no sign of life|rank 1 .*stopped")
        struck("preemption (SIGUSR2)", "checkpoint, exit code 75; resumed", "preempted", 75,
               lab.strike(2, "preempted", lambda launcher, ranks: [os.kill(rank, signal.SIGUSR2) for rank in ranks]), 4)
        struck("the file RUN/stop", "checkpoint, exit code 76; resumed", "stopped", 76,
               lab.strike(3, "stopped", lambda launcher, ranks: (Path(folder) / "stopped/stop").touch()), 2)

    height = 30
    figure = Figure(800, 106 + height * len(rows), "Runs on other numbers of ranks, and after faults, end with the same bits")
    figure.text(20, 32, "One configuration, ten ways to its last step", "ink bold", 16)
    figure.text(20, 52, f"Compared with an undisturbed run on 1 rank: {bits[1]} tensors, {int(bits[2]):,} numbers, bit by bit "
                        "(lockstep diff).", "soft", 13.5)
    for x, text, anchor in ((20, "run", "start"), (322, "how it ended", "start"), (780, "last checkpoint", "end")):
        figure.text(x, 82, text, "soft bold", 13, anchor)
    for number, (what, ended, held) in enumerate(rows):
        y = 90 + height * number
        figure.line(20, y, 780, y)
        figure.text(20, y + 20, what, "ink", 13.5)
        figure.text(322, y + 20, ended, "soft", 13.5)
        figure.box(676, y + 9, 12, 12, "c2" if held else "c1", radius=6)
        figure.text(780, y + 20, "same bits" if held else "DIFFERS", "ink bold", 13.5, "end")
    figure.save(out)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
