#!/usr/bin/env python3
"""Time training steps of networks of volumes on one thread beside PyTorch's eager mode, in alternating rounds.

Usage: volumes.py LOCKSTEP [--rounds N] [--steps N] [--bf16]      (needs torch; h5py or its Debian package)

cosmoflow: 8 volumes of 32 x 32 x 32, MLPerf HPC's widths; unet: 2 such fields, widths 16 32 64, without attention. Both with
AdamW in float32, or with --bf16 under PyTorch's autocast. PyTorch runs share/example/volumes.py in both memory formats, of which the faster one counts. Prints medians
of the rounds, the median of their ratios, and memory: the peak of a process above that of one that has only loaded its
libraries (for ours, that trains a network of two weights).
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

SOURCES = pathlib.Path(__file__).resolve().parents[3]
CASES = {
    "cosmoflow": (8, "name = cosmoflow\nimage_size = 32\nin_channels = 1\noutputs = 4\ndropout = 0.5\n"),
    "unet": (2, "name = unet\ndims = 3\ntime_embed = false\nin_channels = 1\nout_channels = 1\nmodel_channels = 16\n"
                "channel_mult = 1 2 4\nnum_res_blocks = 1\nnorm_groups = 8\nmiddle_attention = false\n"),
}
TARGETS = {"cosmoflow": (4,), "unet": (1, 32, 32, 32)}


def peer(case, layout, steps, bf16):
    """Prints milliseconds a step and bytes: in a process of its own, for its peak."""
    import resource
    import time
    import torch
    import torch.nn.functional as F
    sys.path.insert(0, str(SOURCES / "share/example"))
    import volumes
    torch.set_num_threads(1)
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    samples = CASES[case][0]
    model = volumes.CosmoFlow(32, 1, 4) if case == "cosmoflow" else volumes.UNet(
        1, 1, 16, 1, (1, 2, 4), dims=3, middle_attention=False, norm_groups=8)
    x, y = torch.randn(samples, 1, 32, 32, 32), torch.rand(samples, *TARGETS[case])
    if layout == "channels_last":
        model, x = model.to(memory_format=torch.channels_last_3d), x.to(memory_format=torch.channels_last_3d)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    times = []
    for _ in range(steps + 2):
        begin = time.perf_counter()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            output = model(x)
        F.mse_loss(output.float(), y).backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"ms": 1e3 * statistics.median(times[2:]), "bytes": 1024 * (peak - base)}))


def write_files(folder, precision):
    script = ("import h5py, numpy as np\nd = np.random.default_rng(1)\n"
              + "".join(f"with h5py.File(r'{folder}/{case}.h5', 'w') as f:\n    f['x'], f['y'] = d.normal(size=({n}, 1, 32, 32, 32)).astype('f4'), "
                        f"d.random(({n}, *{TARGETS[case]}), 'f4')\n" for case, (n, _) in CASES.items())
              + f"with h5py.File(r'{folder}/tiny.h5', 'w') as f:\n    f['x'], f['y'] = np.ones((2, 1), 'f4'), np.ones((2, 1), 'f4')\n")
    subprocess.run(["/usr/bin/python3", "-c", script], check=True)
    for case, (n, model) in {**CASES, "tiny": (2, "name = mlp\nsizes = 1 1\n")}.items():
        (folder / f"{case}.ini").write_text(f"[model]\n{model}[task]\nname = regression\n[data]\ntrain = {folder}/{case}.h5\n"
                                            f"[train]\nsteps = 10\nprecision = {precision}\nglobal_batch = {n}\nshards = 1\n[optimizer]\nname = adamw\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lockstep", nargs="?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--peer", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer(*args.peer, args.steps, args.bf16)
    one_thread = dict(os.environ, OMP_NUM_THREADS="1")

    def run(*command):
        return json.loads(subprocess.run(command, capture_output=True, check=True, text=True, env=one_thread).stdout)

    def theirs(case, layout):
        return run(sys.executable, __file__, "--steps", str(args.steps), *["--bf16"] * args.bf16, "--peer", case, layout)

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_files(folder, "bf16" if args.bf16 else "fp32")

        def ours(case):
            found = run(args.lockstep, "bench", "step", "--config", f"{folder}/{case}.ini", "--steps", str(args.steps), "--json")
            return {"ms": found["step_ms"], "bytes": found["peak_memory_bytes"]}

        base = ours("tiny")["bytes"]
        for case in CASES:
            rounds = [(ours(case), theirs(case, "contiguous"), theirs(case, "channels_last")) for _ in range(args.rounds)]
            ms = [[one["ms"] for one in kind] for kind in zip(*rounds)]
            best = min((1, 2), key=lambda kind: statistics.median(ms[kind]))
            ratio = statistics.median(b / a for a, b in zip(ms[0], ms[best]))
            mine, other = (statistics.median(r[kind]["bytes"] for r in rounds) - less for kind, less in ((0, base), (best, 0)))
            print(f"{case}: {statistics.median(ms[0]):.0f} ms a step, PyTorch {statistics.median(ms[best]):.0f} "
                  f"({('contiguous', 'channels_last')[best - 1]}): {ratio:.2f} times its speed; "
                  f"{mine / 2**20:.0f} MiB, PyTorch {other / 2**20:.0f}: {mine / other:.2f} of its memory", flush=True)


if __name__ == "__main__":
    main()
