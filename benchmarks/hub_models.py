"""Models of Hugging Face, torchvision and timm: plans of every kind, run beside one device.

Each is small, and read as users give it, inputs by name and a loss of its own; then planned for
two devices as replicas, as tensor-parallel ranks and as two stages, and trained for a few steps in
local processes. Needs packages that are no extras of parenvs:

    pip install 'transformers==5.24.0' 'torchvision==0.28.0' 'timm==1.0.31'
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import parenvs
from benchmarks.framework import Case, Row, main, measurement, table
from parenvs.clock.run import run
from parenvs.errors import ParenvsError
from parenvs.graph.graph import Graph

SOURCE = str(Path(__file__).with_name("hub_zoo.py"))
KINDS: dict[str, dict[str, Any]] = {
    "replicas": {"tp": 1, "pp": 1, "zero": (0,)},
    "ZeRO 3": {"tp": 1, "pp": 1, "zero": (3,)},
    "tp": {"tp": 2, "pp": 1},
    "stages": {"tp": 1, "pp": 2},
}
STEPS = 2


def planned(name: str, kind: str, folder: Path) -> Path:
    """The file of the best plan of a kind for two devices."""
    graph = _graph(name)
    graph.save(folder / "graph.npz")
    target = parenvs.problem(
        str(folder / "graph.npz"), "1x2:v100", task="hybrid", batch=graph.batch_size,
        stack="roofline", precision="fp32",
    )  # fmt: skip
    limits = {**KINDS[kind], "framework": "torch", "uneven": True, "chunks": 1}
    answer = parenvs.plan(target, "uniform", constraints=limits)
    answer.plan.save(folder / "plan.json")
    return folder / "plan.json"


def _graph(name: str) -> Graph:
    """Return the graph of a model."""
    import torch

    from benchmarks.hub_zoo import MODELS

    module, inputs = MODELS[name]
    torch.manual_seed(0)
    return parenvs.from_torch(module(), **inputs())


def tried(name: str, kind: str) -> Row:
    """Whether a plan can be had and runs as one device does, or the line that refuses it."""
    row: Row = {"plans": True, "runs": False, "same": False}
    with tempfile.TemporaryDirectory(prefix="parenvs-") as place:
        try:
            file = planned(name, kind, Path(place))
        except ParenvsError as error:
            return {**row, "plans": False, "line": str(error).replace(place, "")}
        try:
            done = run(file, f"{SOURCE}:{name}", f"{name}_inputs", STEPS)
        except ParenvsError as error:
            return {**row, "line": str(error).replace(place, "")}
    return {
        **row, "runs": True, "same": done.agrees, "difference": done.difference,
        "line": "; ".join(done.faults),
    }  # fmt: skip


@measurement(
    title="Models of transformers, torchvision, timm and Flax",
    key="model kind",
    about={"models": "only these (default: all)"},
)
def hub_models(models: tuple[str, ...] = ()) -> Iterator[Case]:
    from benchmarks.hub_zoo import MODELS

    for name in models or MODELS:
        for kind in KINDS:
            yield {"model": name, "kind": kind}, partial(tried, name, kind)


@hub_models.page
def page(rows: list[Row]) -> list[str]:
    plans = [x for x in rows if x["plans"]]
    same = sum(x["same"] for x in plans)
    lines = []
    for kind in KINDS:
        mine = [row for row in rows if row["kind"] == kind]
        counts = (sum(row[name] for row in mine) for name in ("plans", "runs", "same"))
        lines.append([kind, len(mine), *counts])
    return [
        f"Of {len(plans)} plans of {len({x['model'] for x in rows})} models of transformers, "
        f"torchvision, timm and Flax, {same} train as one device does, {STEPS + 1} steps by Adam.",
        table(["plan", "models", "have a plan", "run", "equal one device"], lines),
    ]


if __name__ == "__main__":
    main(hub_models)
