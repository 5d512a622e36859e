"""A small IOPDDL file, and where the contest's files are."""

import gzip
import json
import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("PARENVS_IOPDDL", Path(__file__).parents[3] / "shared" / "iopddl"))
needs_files = pytest.mark.skipif(not FOLDER.is_dir(), reason="no ../shared/iopddl")
SMALL = {
    "problem": {
        "name": "small",
        "nodes": {
            "intervals": [[0, 2], [1, 3], [0, 0]],
            "costs": [[1, 2], [3], [4, 5]],
            "usages": [[6, 7], [8], [100, 100]],
        },
        "edges": {"nodes": [[0, 1], [2, 0], [0, 1]], "costs": [[1, 2], [1, 2, 3, 4], [10, 20]]},
        "usage_limit": 14,
    }
}


def written(folder, content, name="p.json"):
    path = folder / name
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path
