#!/usr/bin/env python3
"""concepts.py FOLDER: the figures of docs/concepts.md: shards.svg, tree.svg, buckets.svg."""
import sys
from pathlib import Path

from svg import Figure

COLOURS = ("c0", "c4", "c2")  # of ranks


def blocks(shards, ranks):
    """(first, count) of each rank: contiguous, sizes differ by at most one."""
    sizes = [shards // ranks + (rank < shards % ranks) for rank in range(ranks)]
    return [(sum(sizes[:rank]), size) for rank, size in enumerate(sizes)]


def owner(shard, shards, ranks):
    return next(rank for rank, (first, count) in enumerate(blocks(shards, ranks)) if first <= shard < first + count)


def shards_figure(folder, shards=5):
    figure = Figure(800, 262, "A global batch is cut into shards; ranks own contiguous blocks of them")
    left, width, gap = 150, 630, 6
    each = (width - gap * (shards - 1)) / shards
    figure.text(20, 32, "One global batch, cut into 5 shards", "ink bold", 16)
    figure.text(20, 70, "train.shards = 5", "soft", 13)
    for shard in range(shards):
        x = left + shard * (each + gap)
        figure.box(x, 50, each, 30, "faint", radius=4)
        figure.text(x + each / 2, 70, f"shard {shard}", "ink", 13.5, "middle")
    for row, ranks in enumerate((1, 2, 3)):
        y = 102 + row * 50
        figure.text(20, y + 21, f"{ranks} rank{'s' if ranks > 1 else ''}", "ink", 14)
        for rank, (first, count) in enumerate(blocks(shards, ranks)):
            x, block = left + first * (each + gap), count * each + (count - 1) * gap
            figure.box(x, y, block, 32, COLOURS[rank], radius=4)
            passes = f"rank {rank}: {count} pass{'es' if count > 1 else ''}"
            if count > 1 and block > 250:
                passes += ", one after another"
            figure.text(x + block / 2, y + 21, passes, "on bold", 13.5, "middle")
    figure.save(folder / "shards.svg")


def tree_figure(folder, shards=5, ranks=2):
    figure = Figure(800, 348, "Gradients of 5 shards are added along one binary tree")
    figure.text(20, 32, "The tree over 5 shards, here on 2 ranks", "ink bold", 16)
    left, width, bottom = 70, 660, 280
    nodes = []

    def x(shard):
        return left + width * (shard + 0.5) / shards

    def draw(first, count, level):
        """Draws the lines of a sub-tree; returns where its root is, and which ranks it is of."""
        if count == 1:
            return x(first), bottom, {owner(first, shards, ranks)}
        split = 1
        while split * 2 < count:
            split *= 2
        below = [draw(first, split, level + 1), draw(first + split, count - split, level + 1)]
        place = (below[0][0] + below[1][0]) / 2, 76 + 68 * level
        for child in below:
            figure.line(*place, child[0], child[1], "line", 2)
        nodes.append((*place, below[0][2] | below[1][2], f"{first}..{first + count - 1}"))
        return nodes[-1][:3]

    draw(0, shards, 0)
    for shard in range(shards):
        figure.box(x(shard) - 40, bottom - 15, 80, 30, COLOURS[owner(shard, shards, ranks)], radius=4)
        figure.text(x(shard), bottom + 5, f"shard {shard}", "on bold", 13, "middle")
    for px, py, who, text in nodes:
        figure.box(px - 34, py - 15, 68, 30, COLOURS[min(who)] if len(who) == 1 else "paper", radius=15)
        figure.text(px, py + 5, text, "on bold" if len(who) == 1 else "ink bold", 13, "middle")
    for key, style, text in ((20, "c0", "added by rank 0"), (160, "c4", "by rank 1"), (256, "paper", "between ranks")):
        figure.box(key, 318, 12, 12, style)
        figure.text(key + 18, 328.5, text, "soft", 13)
    figure.text(780, 328.5, "1, 3 or 5 ranks: the same additions, the same bits", "ink", 13, "end")
    figure.save(folder / "tree.svg")


def buckets_figure(folder):
    figure = Figure(800, 258, "A bucket is summed while backward computes the gradients of the next one")
    figure.text(20, 32, "Backward fills buckets from the last layer to the first", "ink bold", 16)
    left, each, done = 106, 94, []
    figure.text(20, 75, "backward", "ink", 13.5)
    for number, layer in enumerate(["layer 6", "layer 5", "layer 4", "layer 3", "layer 2", "layer 1"]):
        figure.box(left + each * number, 56, each - 3, 30, "c0", radius=3)
        figure.text(left + each * (number + 0.5), 76, layer, "on bold", 13, "middle")
        done.append(left + each * (number + 1) - 3)
    figure.line(done[-1], 46, done[-1], 232, "line", 1.5)
    buckets = [(1, 140, "layers 6, 5"), (3, 140, "layers 4, 3"), (4, 66, "layer 2"), (5, 62, "layer 1")]
    for bucket, (last, _, _) in enumerate(buckets[:-1]):
        figure.line(done[last], 86, done[last], 102 + 28 * bucket, "line dash", 1)
    free = 0.0
    for bucket, (last, length, text) in enumerate(buckets):
        y = 102 + 28 * bucket
        figure.text(20, y + 15, f"bucket {bucket}", "ink", 13.5)
        start = max(done[last], free)
        free = start + length
        figure.box(start, y, length, 20, "c4", radius=3)
        figure.text(start + length / 2, y + 15, f"sum of {text}" if length > 100 else text, "on bold", 12.5, "middle")
    figure.box(done[-1], 218, free - done[-1], 12, "c1")
    figure.text(done[-1] - 8, 228.5, "exposed communication: what backward cannot hide", "soft", 13, "end")
    figure.text(780, 247, "time →", "soft", 13, "end")
    figure.save(folder / "buckets.svg")


if __name__ == "__main__":
    where = Path(sys.argv[1])
    shards_figure(where)
    tree_figure(where)
    buckets_figure(where)
