"""Models of Hugging Face, torchvision, timm and Flax: plans of every kind, run beside one device.

Each is small, and read as users give it, inputs by name and a loss of its own; then planned for
two devices as replicas, as tensor-parallel ranks and as two stages, and trained for a few steps in
local processes, those of Flax on virtual devices. Needs packages that are no extras of parenvs;
measured with the first line, and with the second for Flax, which later versions do not have:

    pip install 'transformers==5.24.0' 'torchvision==0.28.0' 'timm==1.0.31'
    pip install 'transformers==4.57.6' 'flax==0.12.8' 'optax==0.2.8'
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.framework import Case, Row, columns, main, measurement
from parenvs import from_torch, problem, solve
from parenvs.clock.runs.run import run
from parenvs.errors import ParenvsError
from parenvs.graph.graph import Graph
from parenvs.graph.python_source import lower

FLAX = version("transformers").startswith("4.")
ZOO = "flax_zoo" if FLAX else "hub_zoo"
SOURCE = str(Path(__file__).with_name(f"{ZOO}.py"))
MODELS = import_module(f"benchmarks.{ZOO}").MODELS
KINDS: dict[str, dict[str, Any]] = {
    "replicas": {"tp": 1, "pp": 1, "zero": (0,)},
    "ZeRO 3": {"tp": 1, "pp": 1, "zero": (3,)},
    "tp": {"tp": 2, "pp": 1},
    "stages": {"tp": 1, "pp": 2},
}
STEPS = 2


def planned(name: str, kind: str, folder: Path) -> Path:
    """The file of the best plan of a kind for two devices."""
    graph = _graph(name, folder)
    graph.save(folder / "graph.npz")
    target = problem(
        str(folder / "graph.npz"), "1x2:v100", task="hybrid", batch=graph.batch_size,
        stack="roofline", precision="fp32",
    )  # fmt: skip
    framework = "jax" if FLAX else "torch"
    limits = {**KINDS[kind], "framework": framework, "uneven": True, "chunks": 1}
    answer = solve(target, "uniform", constraints=limits)
    answer.plan.save(folder / "plan.json")
    return folder / "plan.json"


def _graph(name: str, folder: Path) -> Graph:
    """The graph of a model; its module is written to the folder where it runs from that."""
    if FLAX:
        lowered = lower(f"{SOURCE}:{name}", f"{name}_inputs")
        (folder / "graph.pb").write_bytes(lowered.proto)
        return lowered.graph(name=name)
    import torch

    module, inputs = MODELS[name]
    torch.manual_seed(0)
    return from_torch(module(), **inputs())


def tried(name: str, kind: str) -> Row:
    """Whether a plan can be had and runs as one device does, or the line that refuses it."""
    begin = time.perf_counter()
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
    equal = sum(x.agrees for x in done.traffic.values())
    return {
        **row, "runs": True, "same": done.agrees, "difference": done.difference,
        "words": done.words,
        "bytes": f"{equal} of {len(done.traffic)}", "line": "; ".join(done.faults),
        "took": round(time.perf_counter() - begin, 1),
    }  # fmt: skip


@measurement(
    title="Models of transformers, torchvision, timm and Flax",
    key="model kind",
    about={"models": "only these (default: all of the version installed)"},
)
def hub_models(models: tuple[str, ...] = ()) -> Iterator[Case]:
    # No list: rows of models that need another version of transformers stay on the page.
    for name in models or MODELS:
        for kind in KINDS:
            yield {"model": name, "kind": kind}, partial(tried, name, kind)


@hub_models.page
def page(rows: list[Row]) -> list[str]:
    plans = [x for x in rows if x["plans"]]
    same = sum(x["same"] for x in plans)
    sections = [
        f"Of {len(plans)} plans of {len({x['model'] for x in rows})} models, {same} train as one "
        f"device does, {STEPS + 1} steps by Adam. {len(rows) - len(plans)} were refused as they "
        "were planned.",
        columns(list(_by_model(rows)), [("model", "{model}"), *((x, f"{{{x}}}") for x in KINDS)]),
    ]
    lines = [x for x in rows if x["line"]]
    if lines:
        told = [("model", "{model}"), ("kind", "{kind}"), ("line", "{line}")]
        sections += ["## What was refused, or differs", columns(lines, told, left=3)]
    return sections


def _by_model(rows: list[Row]) -> Iterator[Row]:
    """A row for each model: what became of each kind."""
    for name in dict.fromkeys(x["model"] for x in rows):
        row: Row = {"model": name, **dict.fromkeys(KINDS, "")}
        for x in rows:
            if x["model"] == name:
                row[x["kind"]] = (
                    "no plan" if not x["plans"]
                    else "refused" if not x["runs"]
                    else f"same, bytes {x['bytes']}" if x["same"] else "differs"
                )  # fmt: skip
        yield row


if __name__ == "__main__":
    main(hub_models)
