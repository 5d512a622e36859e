"""The best hybrid plan beside the best plan of each kind of parallelism and Megatron's rule."""

from __future__ import annotations

from functools import partial
from typing import Any

import parenvs
from benchmarks.common import parser, percent, progress, publish, table
from parenvs.agents.hybrid import exact, exact_uniform
from parenvs.agents.hybrid.heuristics import PURE, megatron, pure
from parenvs.errors import InfeasibleError
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import UniformSpace
from parenvs.tasks.hybrid.space.objectives import near_best, robustness

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
    problem: Hybrid = parenvs.problem(name, cluster, task="hybrid", batch=MODELS[name])
    return problem


def words(report: Any) -> str:
    """The plan in a few words."""
    plan, first = report.plan, report.plan.stages[0]
    sizes = {stage.size for stage in plan.stages}
    alike = {(s.tp, s.devices, s.zero, s.recompute) for s in plan.stages}
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
    except InfeasibleError as error:
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


def main() -> None:
    """Write the tables."""
    options = parser(__doc__)
    options.add_argument("--limit", type=float, default=20.0, help="seconds for free stages")
    args = options.parse_args()
    data, lines, best_lines = [], [], []
    for name in MODELS:
        for cluster in CLUSTERS:
            problem = problem_of(name, cluster)
            progress(f"{name} on {cluster}")
            rows = [row_of(kind, partial(pure, problem, kind)) for kind in PURE]
            rows.append(row_of("megatron", partial(megatron, problem)))
            rows.append(row_of("uniform", partial(exact_uniform, problem)))
            rows.append(row_of("hybrid", partial(exact, problem, time_limit=args.limit)))
            data.append({"model": name, "cluster": cluster, "rows": rows})
            lines.append([name, cluster, *(_seconds(row) for row in rows)])
            best_lines.append(_best(name, cluster, rows))
    header = ["model", "cluster", *PURE, "megatron", "uniform", "hybrid"]
    best_header = ["model", "cluster", "plan", "GB", "MFU", "gain over pure", "over the rule",
                   "over uniform", "proof"]  # fmt: skip
    sections = [
        "Seconds of a step; empty where no plan of the kind fits. `uniform` is the best of all "
        "uniform plans, `hybrid` the better of it and the best plan of free stages.",
        table(header, lines, left=2),
        "The best hybrid plan. A gain over pure of 0 says that hybrid does not help.",
        table(best_header, best_lines, left=3),
        *_robust(),
    ]
    publish("hybrid_plans", sections, data, args.out)


def _seconds(row: dict[str, Any]) -> str:
    return "" if row["seconds"] is None else f"{row['seconds']:.4g}"


def _best(name: str, cluster: str, rows: list[dict[str, Any]]) -> list[str]:
    """One line of the second table."""
    best = rows[-1]
    if best["seconds"] is None:
        return [name, cluster, best["message"].split("; ", 1)[-1], *[""] * 6]

    def gain(others: list[dict[str, Any]]) -> str:
        known = [row["seconds"] for row in others if row["seconds"] is not None]
        return percent(1 - best["seconds"] / min(known), 1) if known else "only plan that fits"

    proof = "proven" if best["proven"] else f"bound {best['bound']:.4g} s"
    pure_rows, rule, uniform = rows[: len(PURE)], rows[-3:-2], rows[-2:-1]
    gains = [gain(pure_rows), gain(rule), gain(uniform)]
    figures = [f"{best['gigabytes']:.1f}", percent(best["mfu"], 1)]
    return [name, cluster, best["plan"], *figures, *gains, proof]


def _robust() -> list[str]:
    """Near-best plans of the 70B model, and how the best one fares on other machines."""
    problem = problem_of("llama3-70b", "16x8:h100")
    space = UniformSpace.build(problem)
    listed = near_best(space, 0.1)
    best = space.plan(listed[0].number)
    shifts = robustness(problem, best)
    return [
        f"Llama-3 70B on 16x8:h100: {len(space)} uniform plans, {space.fits.sum()} fit, "
        f"{len(space.pareto())} on the front of seconds and bytes. Those within 10 % of the best:",
        table(["plan", "seconds", "more"],
              [[x.text, f"{x.value:.2f}", percent(x.excess, 1)] for x in listed]),
        "The best of them if a share of the machine is 20 % off:",
        table(["", "seconds", "best there", "more", "which is then best"],
              [[s.what, f"{s.seconds:.2f}", f"{s.best_seconds:.2f}", percent(s.excess, 1), s.best]
               for s in shifts], left=(0, 4)),
    ]  # fmt: skip


if __name__ == "__main__":
    main()
