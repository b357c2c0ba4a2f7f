#!/usr/bin/env python3
"""timeline.py TRACE.json OUT.svg WHAT: one step of a trace that `--set log.trace=TRACE.json` has written, on rank 0.

The step of median length is drawn, without the first ones: a row for the computation, one for each bucket.
"""
import json
import sys
from collections import defaultdict

from svg import Figure

WIDTH, LEFT, RIGHT, ROW = 800, 92, 24, 21
STYLES = {"forward": "c5", "backward": "c0", "optimizer": "c2", "sum": "c4", "wait for sums": "c1"}


def usual_step(events):
    """The spans (row, name, start_ms, length_ms) of rank 0 in the step of median length."""
    steps = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and event["pid"] == 0:
            steps[event["args"]["step"]].append((event["tid"], event["name"], event["ts"] / 1e3, event["dur"] / 1e3))
    length = {step: span[3] for step, spans in steps.items() for span in spans if span[0] == 0}
    settled = sorted(list(length)[3:] or length, key=length.get)
    spans = steps[settled[len(settled) // 2]]
    start = next(span[2] for span in spans if span[0] == 0)
    return [(row, name, at - start, duration) for row, name, at, duration in spans if row > 0]


def main():
    trace, out, what = sys.argv[1:]
    spans = usual_step(json.load(open(trace))["traceEvents"])
    end = max(at + duration for _, _, at, duration in spans)
    buckets = sorted({row for row, *_ in spans if row > 1})
    top, bottom = 64, 64 + ROW * len(buckets) + 54
    figure = Figure(WIDTH, bottom + 76, "One step: the sums of buckets run while backward still computes")
    figure.text(20, 30, "One training step of rank 0: " + what, "ink bold", 16)
    figure.text(20, 50, "Each bucket is summed over the ranks as soon as its last gradient exists.", "soft", 13.5)

    def x(ms):
        return LEFT + (WIDTH - LEFT - RIGHT) * ms / end

    figure.axis(x, end, 8, top, bottom, "ms since the step began")

    figure.text(LEFT - 10, top + 23, "compute", "ink", 13, "end")
    for number, row in enumerate(buckets):
        figure.text(LEFT - 10, top + 55 + ROW * number, f"bucket {number}", "soft", 12.5, "end")
    for row, name, at, duration in spans:
        height, y = (28, top + 5) if row == 1 else (13, top + 44 + ROW * buckets.index(row))
        figure.box(x(at), y, max(1.0, x(at + duration) - x(at)), height, STYLES.get(name, "rest"),
                   f"{name}: {duration:.2f} ms")
        if row == 1 and x(at + duration) - x(at) > 70:
            figure.text(x(at + duration / 2), y + 19, name, "on bold", 13, "middle")
    exposed = sum(duration for row, name, _, duration in spans if name == "wait for sums")
    figure.key(bottom + 50, [("c4", "sum of a bucket over ranks"), ("c2", "optimizer"),
                             ("c1", f"exposed communication: {exposed:.1f} ms, {100 * exposed / end:.1f} % of the step")])
    figure.save(out)


if __name__ == "__main__":
    main()
