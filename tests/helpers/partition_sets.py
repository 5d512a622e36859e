"""A small set of partition problems on graphs that are read in moments."""

import json

ROWS = [
    {"name": "lstm-000", "instance": "big-lstm", "cluster": "1x8:v100", "micro_batch": 16},
    {"name": "vgg-000", "instance": "vgg-19", "cluster": "2x4:v100", "micro_batch": 4,
     "micro_batches": 4, "memory_limit": 1.2e9},
    {"name": "vgg-001", "instance": "vgg-19", "cluster": "1x4:a100", "recompute": "full"},
]  # fmt: skip
"""The first and the last have the memory of a device as their limit."""


def write(folder, *rows, name="mine.json"):
    """Write a set of some rows, or of ``ROWS``; the path of the file as text."""
    path = folder / name
    path.write_text(json.dumps({"schema": 1, "problems": rows or ROWS}))
    return str(path)
