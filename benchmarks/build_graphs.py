"""Builds the shipped graphs: lowers each model abstractly, reads it, writes ``.npz`` and manifest.

    python benchmarks/build_graphs.py            # all models, into datasets/data
    python benchmarks/build_graphs.py t5-base --out /tmp/graphs

It needs the extra ``jax``, and allocates no weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.progress import track

from parenvs.datasets.banks import write_arrays
from parenvs.files import write_text
from parenvs.graph.checks import read_arrays
from parenvs.graph.sources import from_jax
from parenvs.instances import KINDS

COMMAND = "python benchmarks/build_graphs.py"


def shipped() -> dict[str, Any]:
    """Return the models, by instance name; those of the tests' helpers, too."""
    from benchmarks.framework import ROOT  # noqa: F401  finds the helpers
    from multimodal_models import MULTIMODAL
    from parenvs.datasets.models import MODELS

    return {**MODELS, **MULTIMODAL}


def build(name: str, folder: Path) -> dict[str, Any]:
    """Write the graphs of the model ``name`` to ``folder``, and return its manifest entry."""
    from parenvs.datasets.models import forward, train_step

    model = shipped()[name]
    entry: dict[str, Any] = {
        "description": model.description,
        "family": model.family,
        "source": model.source,
        "trained_as": model.trained_as,
        "precision": "bfloat16" if model.mixed else "float32",
        "optimizer": model.optimizer.name,
        "batch_size": model.batch_size,
        "graphs": {},
    }
    for kind, make in zip(KINDS, (train_step, forward), strict=True):
        function, args = make(model)
        graph = from_jax(function, *args, parts=False, name=name, batch_size=model.batch_size)
        path = folder / (f"{name}.npz" if kind == "train" else f"{name}-{kind}.npz")
        graph.save(path)
        write_arrays(path, read_arrays(path))
        data = path.read_bytes()
        entry["graphs"][kind] = {
            "file": path.name,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "fingerprint": graph.fingerprint,
            "instructions": len(graph.opcode),
            "pivots": len(graph.pivots()),
            "variables": int(graph.variables.size),
            "parameters": int(graph.parameter_bytes // 4),
            "flops": graph.total_flops,
        }
    return entry


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    import jax

    models = shipped()
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="models (default: all)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data")
    options = parser.parse_args(None if arguments is None else list(arguments))
    unknown = [name for name in options.names if name not in models]
    if unknown:
        parser.error(f"no model {unknown[0]!r}; known: {', '.join(models)}")
    path = options.out / "manifest.json"
    entries = json.loads(path.read_text(encoding="utf-8"))["instances"] if path.exists() else {}
    for name in track(options.names or list(models), description="lowering"):
        entries[name] = build(name, options.out)
    content = {
        "schema": 1,
        "command": COMMAND,
        "jax": jax.__version__,
        "instances": {name: entries[name] for name in models if name in entries},
    }
    write_text(path, json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
