"""Partition environments, single and batched: steps a second, growth, memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from common import parser, progress, publish

from parenvs.bench import speed_table as tables
from parenvs.bench.play import BASELINE, Case, speeds
from parenvs.bench.scaling import LAYERS, classes, memory

OPERATOR, BATCH = "OperatorPartition-v0", "DataParallel-v0"
CASES: list[tuple[str, dict[str, Any]]] = [
    *((OPERATOR, {"instance": name}) for name in ("t5-base", "t5-11b", "bert-48")),
    (OPERATOR, {"instance": "t5-base", "linkage": False, "masked": True}),
    (BATCH, {"instance": "t5-base"}),
    (BATCH, {"instance": "bert-48"}),
]
SIZES = (1, 8, 64, 1024, 8192)
TOGETHER = 1024
"""Environments of the batches that grow, and of those whose memory is measured."""


def named(case: Case) -> str:
    """Id and keyword arguments of an environment, in words."""
    name, kwargs = case
    return ", ".join([name, *(f"{key}={value}" for key, value in kwargs.items())])


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, repeats=5, seconds=0.5)
    options.add_argument("--envs", type=int, nargs="*", default=SIZES)
    options.add_argument("--layers", type=int, nargs="*", default=LAYERS)
    asked = options.parse_args()
    seconds, repeats = asked.seconds, asked.repeats
    chosen = {BASELINE: (BASELINE, {}), **{named(case): case for case in CASES}}
    rows = speeds(chosen, (0, *asked.envs), seconds, repeats, progress)
    grown = []
    with tempfile.TemporaryDirectory() as folder:
        for layers in asked.layers:
            progress(f"{layers} layers")
            grown.append(classes(layers, TOGETHER, Path(folder), seconds, repeats))
    memories = [memory(named(case), case, TOGETHER) for case in CASES]
    sections = [
        tables.preface(seconds, repeats),
        tables.environments(rows),
        *tables.classes(grown),
        *tables.memory(memories),
    ]
    data = {"repeats": repeats, "speeds": rows, "growth": grown, "memory": memories}
    publish("vector_partition", sections, data, asked.out)


if __name__ == "__main__":
    main()
