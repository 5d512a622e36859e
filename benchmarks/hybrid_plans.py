"""The best hybrid plan beside the best plan of each kind of parallelism and Megatron's rule."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.framework import Column, columns, main, measurement, percent, table
from parenvs import problem as problem_from
from parenvs.agents.hybrid import exact_uniform, ranked
from parenvs.agents.hybrid.heuristics import PURE, megatron, pure
from parenvs.errors import InfeasibleError, TimeLimitError
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import UniformSpace
from parenvs.tasks.hybrid.space.objectives import near_best
from parenvs.tasks.hybrid.space.robustness import robustness

CLUSTERS = ("A", "B", "C", "h100-2", "16x8:h100")
MODELS = {
    "t5-11b": 192,
    "vgg-19": 768,
    "bert-48": 768,
    "llama3-8b": 384,
    "llama3-70b": 1024,
    "gpt3-175b": 1536,
}
"""Name of a graph or a shape -> samples of a step."""


def problem_of(name: str, cluster: str) -> Hybrid:
    """A model of the table on a cluster."""
    problem: Hybrid = problem_from(name, cluster, task="hybrid", batch=MODELS[name])
    return problem


def words(report: Any) -> str:
    """The plan in a few words."""
    plan, first = report.plan, report.plan.stages[0]
    sizes = {stage.size for stage in plan.stages}
    alike = {(s.tp, s.devices, s.zero, str(s.recompute)) for s in plan.stages}
    text = f"tp {first.tp}, pp {len(plan.stages)}, dp {first.devices // first.tp}"
    text += f", b {plan.micro_batch}" + (f", v {plan.chunks}" if plan.chunks > 1 else "")
    text += f", ZeRO {first.zero}" if first.zero else ""
    modes = {mode for stage in plan.stages for mode in stage.modes} - {"none"}
    text += f", {'/'.join(sorted(modes))}" if modes else ""
    return text + (", stages differ" if len(alike) > 1 or len(sizes) > 1 else "")


def row_of(kind: str, call: Any) -> dict[str, Any]:
    """One planner's plan, judged."""
    try:
        answer = call()
    except (InfeasibleError, TimeLimitError) as error:
        return {"kind": kind, "seconds": None, "message": str(error)}
    report = answer.report
    if not report.legal:
        raise AssertionError(report.reasons)
    return {
        "kind": kind,
        "seconds": report.length_seconds,
        "gigabytes": float(report.held.total.max()) / 1e9,
        "mfu": report.mfu,
        "plan": words(report),
        "proven": answer.proven,
        "bound": answer.bound,
        "claim": answer.claim,
        "planner_seconds": answer.seconds,
        "file": answer.plan.to_json(),
    }


@measurement(title="Hybrid plans of graphs", about={"limit": "seconds for free stages"})
def hybrid_plans(limit: float = 20.0) -> Iterator[dict[str, Any]]:
    for name in MODELS:
        for cluster in CLUSTERS:
            problem = problem_of(name, cluster)
            rows = [row_of(kind, partial(pure, problem, kind)) for kind in PURE]
            rows.append(row_of("megatron", partial(megatron, problem)))
            rows.append(row_of("uniform", partial(exact_uniform, problem)))
            rows.append(row_of("hybrid", partial(ranked, problem, time_limit=limit)))
            yield {"model": name, "cluster": cluster, "rows": rows}


def gain(best: dict[str, Any], others: list[dict[str, Any]]) -> str:
    known = [row["seconds"] for row in others if row["seconds"] is not None]
    return percent(1 - best["seconds"] / min(known), 1) if known else "only plan that fits"


def best_of(model: str, cluster: str, rows: list[dict[str, Any]]) -> list[str]:
    """A line on the best plan."""
    best = rows[-1]
    if best["seconds"] is None:
        return [model, cluster, best["message"].split("; ", 1)[-1], *[""] * 6]
    proof = "proven" if best["proven"] else f"bound {best['bound']:.4g} s"
    gains = [gain(best, others) for others in (rows[: len(PURE)], rows[-3:-2], rows[-2:-1])]
    figures = [f"{best['gigabytes']:.1f}", percent(best["mfu"], 1)]
    return [model, cluster, best["plan"], *figures, *gains, proof]


@hybrid_plans.page
def page(rows: list[dict[str, Any]]) -> list[str]:
    kinds = (*PURE, "megatron", "uniform", "hybrid")
    told: list[Column] = [("model", "{model}"), ("cluster", "{cluster}")]
    told += [(kind, f"{{rows[{k}][seconds]:.4g}}") for k, kind in enumerate(kinds)]
    best_header = ["model", "cluster", "plan", "GB", "MFU", "gain over pure", "over the rule",
                   "over uniform", "proof"]  # fmt: skip
    return [
        "Seconds of a step; empty where no plan of the kind fits. `uniform` is the best of all "
        "uniform plans by the closed form, `hybrid` the plan of these and of free stages whose "
        "simulated step is best.",
        columns(rows, told, left=2),
        "The best hybrid plan. A gain over pure of 0 says that hybrid does not help.",
        table(best_header, [best_of(**row) for row in rows], left=3),
        *robust(),
    ]


def robust() -> list[str]:
    """Near-best plans of the 70B model, and how the best one fares on other machines."""
    problem = problem_of("llama3-70b", "16x8:h100")
    space = UniformSpace.build(problem)
    listed = near_best(space, 0.1)
    shifts = robustness(space, space.plan(listed[0].number))
    return [
        f"Llama-3 70B on 16x8:h100: {len(space)} uniform plans, {space.fits.sum()} fit, "
        f"{len(space.pareto())} on the front of seconds and bytes. Those within 10 % of the best:",
        table(["plan", "seconds", "more"],
              [[x.text, f"{x.value:.2f}", percent(x.excess, 1)] for x in listed]),
        "The best of them if constants move in their plausible ranges, and under other stacks:",
        table(["", "seconds", "best there", "more", "which is then best"],
              [[s.what, f"{s.seconds:.2f}", f"{s.best_seconds:.2f}", percent(s.excess, 1), s.best]
               for s in shifts], left=(0, 4)),
    ]  # fmt: skip


if __name__ == "__main__":
    main(hybrid_plans)
