#!/usr/bin/env python3
"""step_time.py TIMES.txt OUT.svg: bars of what tests/bench/peers/step.sh has printed: ms a step, Lockstep and PyTorch."""
import re
import sys
from collections import defaultdict

from svg import Figure

WIDTH, LEFT, RIGHT, BAR = 800, 218, 144, 20
NAMES = {"ours": ("Lockstep", "c0"), "newest": ("PyTorch", "c4"), "newest-compiled": ("PyTorch, torch.compile", "rest")}
WORKLOADS = {"gpt-cpu": "GPT, 4 layers, 256 channels", "resnet-cpu": "ResNet, 3 x 32 x 32", "mlp-wide": "MLP, 25 M parameters"}


def main():
    source, out = sys.argv[1:]
    text = open(source).read()
    times = defaultdict(list)
    for workload, who, ms, ratio in re.findall(r"^(\S+) +fp32 +(\S+) +([\d.]+) *(?:([\d.]+)x)?$", text, re.M):
        times[workload].append((who, float(ms), ratio))
    version = re.search(r"PyTorch ([\d.]+)", text)[1]
    program = re.search(r"lockstep ([\d.]+)", text)[1]
    processor = re.search(r"cores: (.*)$", text, re.M)[1]
    rounds, steps = re.search(r"medians of (\d+) rounds of (\d+) steps", text).groups()

    rows = sum(len(bars) for bars in times.values())
    top, height = 74, 74 + rows * (BAR + 4) + len(times) * 18
    figure = Figure(WIDTH, height + 62, "Step times of Lockstep and PyTorch on one thread")
    figure.text(20, 32, f"Time of a training step: Lockstep {program} and PyTorch {version}", "ink bold", 16)
    figure.text(20, 52, f"float32, one thread of an {processor}; medians of {rounds} alternating rounds of {steps} steps.",
                "soft", 13.5)
    longest = max(ms for bars in times.values() for _, ms, _ in bars)

    def x(ms):
        return LEFT + (WIDTH - LEFT - RIGHT) * ms / longest

    figure.axis(x, longest, 6, top, height, "ms a step, optimizer included")
    y = top + 8
    for workload, bars in times.items():
        figure.text(20, y + 14, workload, "ink bold", 13.5)
        figure.text(20, y + 32, WORKLOADS.get(workload, ""), "soft", 12.5)
        for who, ms, ratio in bars:
            figure.box(LEFT, y, x(ms) - LEFT, BAR, NAMES[who][1], f"{NAMES[who][0]}: {ms:g} ms")
            figure.text(x(ms) + 8, y + 15, f"{ms:.0f} ms" + (f", {ratio} x" if ratio else ""), "ink", 13)
            y += BAR + 4
        y += 18
    figure.key(height + 38, [(style, name) for name, style in NAMES.values()])
    figure.save(out)


if __name__ == "__main__":
    main()
