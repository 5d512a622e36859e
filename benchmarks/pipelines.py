"""Pipelines that several scripts solve: problems, solved problems, and names of layers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from functools import cache

from benchmarks.framework import Row, percent
from parenvs import Cluster, Pipeline, judge, load_profile
from parenvs.core.plan import Answer
from parenvs.errors import InfeasibleError

CLUSTERS = ("A", "B", "C")


@cache
def problem(instance: str, cluster: str) -> Pipeline:
    """A shipped instance on a preset cluster."""
    devices = Cluster.parse(cluster)
    return Pipeline(load_profile(instance, devices), devices)


def solve(pipeline: Pipeline, planner: Callable[[], Answer]) -> Row:
    """Run a planner and judge its plan.

    Returns:
        ``status`` (``"optimal"``, ``"feasible"`` without a proof, ``"infeasible"`` if proven),
        ``seconds`` of the planner by the clock, and of a plan ``length_seconds``,
        ``simulated_seconds``, ``value``, ``bound_seconds``, ``cuts``, ``device_cuts`` and
        ``after``: the names of the last pivots before its cuts.
    """
    found: Row = {"length_seconds": None, "simulated_seconds": None, "value": None,
                  "bound_seconds": None, "cuts": (), "device_cuts": (), "after": ()}  # fmt: skip
    begin = time.perf_counter()
    try:
        answer = planner()
    except InfeasibleError as error:
        seconds = time.perf_counter() - begin
        return {"status": "infeasible", "seconds": seconds, **found, "message": str(error)}
    seconds = time.perf_counter() - begin
    plan = answer.plan
    report = judge(plan, pipeline)
    if not report.legal:
        raise AssertionError(f"{answer.method}: {report.reasons}")
    return {
        "status": answer.status,
        "seconds": seconds,
        "length_seconds": report.length_seconds,
        "simulated_seconds": report.simulated_seconds,
        "value": report.value,
        "bound_seconds": answer.bound,
        "cuts": plan.cuts,
        "device_cuts": plan.device_cuts,
        "after": plan.cut_after,
        "message": "",
    }


def longer(one: Row | None, other: Row | None, digits: int = 2) -> str:
    """By how much a plan is longer than another; empty if there is none, or no other."""
    lengths = [found and found["length_seconds"] for found in (one, other)]
    return percent(lengths[0] / lengths[1] - 1, digits) if all(lengths) else ""


def gap(found: Row) -> float:
    """Length over the proven bound, less 1."""
    return found["length_seconds"] / found["bound_seconds"] - 1


def proof(found: Row | None) -> str:
    """What is proven of an answer; nothing of none."""
    if found is None or found["status"] != "feasible":
        return found["status"] if found else ""
    return f"none: within {percent(gap(found))}"


def layer(name: str) -> str:
    """Short name of the layer that a pivot belongs to: ``enc 13``, ``dec 3``, ``24``, ``fc1``.

    Layers are numbered as in the model's names, from 0. BERT has no decoder: see ``layers``.
    """
    match = re.search(r"(?:(encoder|decoder)/)?layer_(\d+)", name)
    if match:
        return f"{(match[1] or '')[:3]} {match[2]}".strip()
    parts = [part for part in name.split("/") if not part.startswith("jit(")]
    return (parts[0] if "/" in name and parts else name).split("(")[0].strip()


def layers(pipeline: Pipeline, after: Iterable[str]) -> tuple[str, ...]:
    """Short names of the layers after which a plan cuts."""
    both = any("decoder/" in name for name in pipeline.profile.names)
    return tuple(layer(x) if both else layer(x).removeprefix("enc ") for x in after)
