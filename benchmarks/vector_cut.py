"""``PipelineCut-v0``, single and batched: steps a second, growth, memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

from common import parser, progress, publish

from parenvs.bench import speed_table as tables
from parenvs.bench.play import BASELINE, Case, speeds
from parenvs.bench.scaling import PIVOTS, chain, memory, pivots

ID = "PipelineCut-v0"
SIZES = (1, 8, 64, 1024, 8192)
WINDOWED, WIDE = 192, 129
"""Pivots of chains of about 128 candidates: in three windows, and all of them in each."""
GROWING, HELD = 256, 1024
"""Environments of the batch whose chain grows, and of those whose memory is measured."""


def cases(folder: Path) -> dict[str, Case]:
    """Environments by what is said of them."""
    everything = {"candidates": "all", "cluster": "C"}
    wide = {**everything, "instance": chain(WIDE, folder), "radius": 32}
    return {
        BASELINE: (BASELINE, {}),
        f"{WINDOWED} pivots": (ID, {**everything, "instance": chain(WINDOWED, folder)}),
        f"{WIDE} pivots, any device cut": (ID, wide),
        f"{WIDE} pivots, any device cut, 8 stages": (ID, {**wide, "stages": 8}),
        "vgg-19, C": (ID, {"instance": "vgg-19", "cluster": "C"}),
        "t5-base, C": (ID, {"instance": "t5-base", "cluster": "C"}),
        "t5-3b, C": (ID, {"instance": "t5-3b", "cluster": "C"}),
    }


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, repeats=5, seconds=0.5)
    options.add_argument("--envs", type=int, nargs="*", default=SIZES)
    options.add_argument("--pivots", type=int, nargs="*", default=PIVOTS)
    asked = options.parse_args()
    seconds, repeats = asked.seconds, asked.repeats
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = cases(folder)
        rows = speeds(chosen, (0, *asked.envs), seconds, repeats, progress)
        grown = []
        for number in asked.pivots:
            progress(f"{number} pivots")
            grown.append(pivots(number, GROWING, folder, seconds, repeats))
        memories = [memory(what, case, HELD, 3) for what, case in chosen.items() if case[1]]
    sections = [
        f"{tables.preface(seconds, repeats)} 4 stages if not said otherwise; every pivot of the "
        "chains may be cut.",
        tables.environments(rows),
        *tables.pivots(grown),
        *tables.memory(memories),
    ]
    data = {"repeats": repeats, "speeds": rows, "growth": grown, "memory": memories}
    publish("vector_cut", sections, data, asked.out)


if __name__ == "__main__":
    main()
