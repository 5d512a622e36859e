"""Training steps of six public Flax models: what the reader and the planners make of them.

Without a hint, each step is read, its roles, phases and FLOPs are compared with the truth, it is
planned for a server, and the plans are verified by Shardy. ``flax_models.py`` has the models. Needs
packages that are no extra of parenvs; measured with

    pip install 'transformers==4.57.6' 'flax==0.12.8' 'optax==0.2.8' 'jax==0.10.2'
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.framework import main, measurement, percent, progress, table
from parenvs import Graph, from_jax, verify
from parenvs.agents.partition.exact import exact_partition
from parenvs.agents.partition.heuristics import data_parallel, expert
from parenvs.cluster import choose_cluster
from parenvs.errors import InfeasibleError
from parenvs.graph.graph import Role
from parenvs.graph.roles import match_paths
from parenvs.tasks.partition.game import PartitionSpace
from parenvs.tasks.partition.problem import Partitioning

DEVICES = 8
PLANS = {"exact": None, "data-parallel": data_parallel, "expert": expert}
MOST_PATHS = 3


def reading(model: Any, program: Any, graph: Graph) -> dict[str, Any]:
    """What was read, beside the truth."""
    from programs import phase_flops

    roles = [Role(role).name for role in graph.parameter_role]
    sizes = [
        int(np.prod(graph.shape(t), dtype=np.int64)) if role == "VARIABLE" else 0
        for t, role in zip(graph.parameter_tensor, program.roles, strict=True)
    ]
    return {
        "parameters": sum(sizes),
        "variables": roles.count("VARIABLE"),
        "variables_expected": program.roles.count("VARIABLE"),
        "wrong_roles": [
            f"{path}: {found.lower()}, not {true.lower()}"
            for path, found, true in zip(graph.paths, roles, program.roles, strict=True)
            if found != true
        ],
        "inputs": len(roles),
        "batch_size": graph.batch_size,
        "batch_size_expected": next(iter(model.batch.values())).shape[0],
        "phase_flops": phase_flops(graph),
        "phase_flops_expected": program.flops,
        "flops": graph.total_flops,
        "flops_loops_once": loops_once(graph),
        "flops_xla": float(program.lowered.cost_analysis()["flops"]),
    }


def loops_once(graph: Graph) -> float:
    """FLOPs of a graph with one iteration of each outer loop, as XLA's cost analysis counts."""
    total = graph.total_flops
    for i in np.flatnonzero((graph.flops > 0) & (graph.parent < 0)):
        if graph.opcodes[graph.opcode[i]] == "while":
            trips = json.loads(graph.strings[graph.attribute[i]])["trip_count"]
            total -= float(graph.flops[i]) * (1 - 1 / trips)
    return total


def megatron(problem: Partitioning, split: Sequence[tuple[str, int]]) -> np.ndarray:
    """(C,) bool: classes of the plan written by hand, as far as they can be partitioned."""
    graph = problem.graph
    paths = [graph.paths[i] for i in graph.variables]
    named = {}
    for glob, dimension in split:
        matches = match_paths([f"/{path}" for path in paths], [glob])
        if not any(matches):
            raise AssertionError(f"{graph.name}: no variable matches {glob}")
        named |= {path: dimension for path, match in zip(paths, matches, strict=True) if match}
    return problem.chosen(named) & ~problem.classes.blocked


def planning(model: Any, program: Any, graph: Graph) -> dict[str, Any]:
    """The plans of a model, judged and verified by Shardy."""
    problem = Partitioning.build(graph, choose_cluster(devices=DEVICES), reward="step_time")
    space, plans = PartitionSpace.of(problem), {}
    by_hand = megatron(problem, model.megatron)
    for name, planner in PLANS.items():
        begin = time.perf_counter()
        try:
            answer = planner(space) if planner else exact_partition(problem)
        except InfeasibleError as error:
            plans[name] = {"error": str(error)}
            continue
        seconds = time.perf_counter() - begin
        report = answer.report
        found = verify(graph, report.plan, program.lowered)
        plans[name] = {
            "seconds": seconds,
            "legal": report.legal,
            "reasons": report.reasons,
            "step_seconds": report.step_seconds,
            "memory_bytes": report.memory.peak,
            "by_hand": bool((answer.report.chosen == by_hand).all()),
            "shardy": found.to_json() | {"disagreements": len(found.disagreements)},
        }
    classes = problem.decidable("all")
    return {
        "classes": len(classes),
        "conflicts": int(np.isin(problem.classes.conflicts, classes).all(axis=1).sum()),
        "by_hand_classes": int(by_hand.sum()),
        "by_hand_legal": problem.legal(by_hand),
        "plans": plans,
    }


def measured(model: Any) -> dict[str, Any]:
    """Everything about a model."""
    progress(model.name)
    program, clock = model.program(), [time.perf_counter()]
    graph = from_jax(program.function, *program.args, parts=False, name=model.name)
    clock.append(time.perf_counter())
    raw = {"model": model.name, "source": model.source, **reading(model, program, graph)}
    raw |= planning(model, program, graph)
    return raw | {"read_seconds": clock[1] - clock[0]}


def reading_row(raw: dict[str, Any]) -> list[object]:
    """A model as it was read."""
    forward, backward, _ = raw["phase_flops"]
    expected = raw["phase_flops_expected"]
    error = max(
        abs(ours - true) / sum(expected)
        for ours, true in zip(raw["phase_flops"], expected, strict=True)
    )
    return [
        raw["model"],
        f"{raw['parameters'] / 1e6:,.1f} M",
        f"{raw['variables']} / {raw['variables_expected']}",
        f"{len(raw['wrong_roles'])} of {raw['inputs']}",
        f"{raw['batch_size']} / {raw['batch_size_expected']}",
        f"1 : {backward / forward:.3f}",
        percent(error),
        percent(raw["flops_loops_once"] / raw["flops_xla"] - 1, 3),
        f"{raw['read_seconds']:.1f}",
    ]


def planning_row(raw: dict[str, Any]) -> list[object]:
    """A model's plans."""
    plans = raw["plans"]
    step = {name: plan.get("step_seconds", np.nan) for name, plan in plans.items()}
    shown = plans["expert"]
    known = "error" not in shown
    agreed = [plan["shardy"]["agrees"] for plan in plans.values() if "shardy" in plan]
    return [
        raw["model"],
        raw["classes"],
        raw["conflicts"],
        f"{1e3 * step['exact']:.1f}",
        *(ratio(step[name], step["exact"]) for name in ("data-parallel", "expert")),
        ("yes" if shown["legal"] else "no") if known else "none",
        ("yes" if shown["by_hand"] else "no") if known else "",
        f"{sum(agreed)} of {len(agreed)}",
        f"{plans['exact']['seconds']:.2f}",
    ]


def ratio(seconds: float, best: float) -> str:
    """How many times longer a step is than the best one; empty if there is none."""
    return "" if np.isnan(seconds) else f"{seconds / best:.3f}"


def remarks(raws: Sequence[dict[str, Any]]) -> list[str]:
    """What the tables have no room for, a line each."""
    lines = []
    for raw in raws:
        wrong = raw["wrong_roles"]
        if wrong:
            more = f" and {len(wrong) - MOST_PATHS} more" if len(wrong) > MOST_PATHS else ""
            lines.append(f"* {raw['model']}: {'; '.join(wrong[:MOST_PATHS])}{more}")
        for name, plan in raw["plans"].items():
            if "error" in plan:
                lines.append(f"* {raw['model']}, {name}: {plan['error']}")
    return lines


@measurement(title="Public models in JAX", about={"models": "only these (default: all)"})
def public_models(models: tuple[str, ...] = ()) -> dict[str, Any]:
    import jax

    from benchmarks.flax_models import MODELS

    return {"jax": jax.__version__, "models": [measured(MODELS[x]()) for x in models or MODELS]}


@public_models.page
def page(data: dict[str, Any]) -> list[str]:
    raws = data["models"]
    read = ["model", "parameters", "variables, found / true", "inputs with a wrong role"]
    read += ["batch size, found / true", "forward : backward", "FLOPs in a wrong phase"]
    read += ["FLOPs, ours / XLA - 1", "seconds"]
    plan = ["model", "classes", "conflicts", "exact, ms", "data-parallel / exact"]
    plan += ["expert / exact", "expert legal", "expert as by hand", "Shardy agrees", "seconds"]
    return [
        f"Training steps with AdamW, read without a hint; jax {data['jax']}. What is true of "
        "roles is written beside the arguments; FLOPs of phases are those of the products and "
        "convolutions in the jaxprs of loss, gradients and step. `ours / XLA - 1`: with one "
        "iteration of the loops that draw random numbers, as XLA's cost analysis counts them. "
        "`seconds`: lower and read.",
        table(read, map(reading_row, raws)),
        f"Plans for one server of {DEVICES} V100, step times by the model. `exact`: the proven "
        "shortest step; `expert as by hand`: the expert partitions the classes that the plan of "
        "Megatron names, written by hand for each model, as far as they can be partitioned; "
        "`Shardy agrees`: of the plans there are; `seconds`: of the proof.",
        table(plan, map(planning_row, raws)),
        *remarks(raws),
    ]


if __name__ == "__main__":
    main(public_models)
