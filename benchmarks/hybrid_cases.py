"""Plans of six trainings beside the recipes that were published for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.framework import columns, main, measurement
from parenvs import problem as problem_from
from parenvs import solve
from parenvs.tasks.hybrid.explain import axes_of, robustness
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import UniformSpace, software_of
from parenvs.tasks.hybrid.uniform import Uniform

DGXC = {"tp": 4, "pp": 4, "context": 2, "chunks": 5, "zero": 1}
CASES = {
    ("llama3-8b", "1x8:h100", 128): {
        "dgxc tp 1 cp 2": {"context": 2, "dp": 4, "zero": 1},
        "FSDP 8": {"dp": 8, "zero": 3},
    },
    ("llama3-70b", "8x8:h100", 256): {
        "dgxc tp 4 pp 4 cp 2 v 5": {**DGXC, "dp": 2},
    },
    ("llama3-70b", "16x8:h100", 512): {
        "dgxc tp 4 pp 4 cp 2 v 5": {**DGXC, "dp": 4},
    },
    ("llama3-405b", "128x8:h100", 512): {
        "Meta tp 8 pp 16 v 8": {"tp": 8, "pp": 16, "chunks": 8, "dp": 8, "zero": 1},
        "NeMo tp 8 pp 8 cp 2 v 8": {
            "tp": 8, "pp": 8, "context": 2, "chunks": 8, "dp": 8, "zero": 1
        },
    },
    ("mixtral-8x7b", "8x8:h100", 256): {
        "NeMo tp 1 pp 4 ep 8 v 8": {"pp": 4, "chunks": 8, "dp": 16, "expert": 8, "zero": 1},
    },
    ("gpt3-175b", "128x8:a100", 1536): {
        "Megatron tp 8 pp 8 v 3": {"tp": 8, "pp": 8, "chunks": 3, "dp": 16},
        "Megatron tp 8 pp 16 v 3": {"tp": 8, "pp": 16, "chunks": 3, "dp": 8},
    },
}  # fmt: skip
"""Model, cluster and batch -> published recipes, by their axes."""


def recipe(problem: Hybrid, axes: dict[str, int]) -> dict[str, float]:
    """Seconds and GB of a published recipe, whether it fits or not."""
    software = software_of(problem)
    full = {"tp": 1, "pp": 1, "dp": 1, **axes}
    plans = Uniform(
        **full, micro_batch=1, batch=problem.batch, sequence_parallel=full["tp"] > 1,
        recompute="selective", blocking=software.blocking,
        gradient_bytes=float(software.gradient_bytes), gradient_overlap=software.gradient_overlap,
    )  # fmt: skip
    seconds, held = plans.judged(problem.model, problem.cluster, problem.machine)
    return {"seconds": float(seconds["length"][0]), "gb": float(held["total"][0]) / 1e9}


@measurement(title="Hybrid plans of known models, and their regret")
def hybrid_cases() -> Iterator[dict[str, Any]]:
    for (name, cluster, batch), recipes in CASES.items():
        problem: Hybrid = problem_from(name, cluster, task="hybrid", batch=batch)
        answer = solve(problem, "exact")
        report = answer.report
        shifts = robustness(UniformSpace.build(problem), answer.plan)
        own = axes_of(answer.plan)
        told = {**own, "context": answer.plan.context, "expert": answer.plan.expert}
        words = [
            f"{axis} {told[axis]}"
            for axis in ("tp", "pp", "dp", "context", "expert", "chunks", "zero")
            if axis in ("tp", "pp", "dp", "zero") or told[axis] > 1
        ]
        yield {
            "case": f"{name}, {cluster}, {batch}",
            "plan": ", ".join(words) + (f", {told['recompute']}" if told["recompute"] else ""),
            "seconds": report.length_seconds,
            "simulated": report.simulated_seconds,
            "gb": float(report.held.total.max()) / 1e9,
            "proven": answer.proven,
            "bound": answer.bound,
            "worst": max(shift.excess for shift in shifts),
            "where": max(shifts, key=lambda shift: shift.excess).what,
            "planner_seconds": answer.seconds,
            "recipes": {key: recipe(problem, axes) for key, axes in recipes.items()},
        }


@hybrid_cases.page
def page(rows: list[dict[str, Any]]) -> list[str]:
    def recipes(row: dict[str, Any]) -> str:
        return "; ".join(
            f"{name}: {one['seconds']:.2f} s ({one['gb']:.0f} GB)"
            for name, one in row["recipes"].items()
        )

    return [
        "bf16, default stacks. The plan is that of `exact`; regret is the most that it takes over "
        "the best uniform plan while one constant moves in its plausible range, or under another "
        "stack. Published recipes by the same model, with selective recomputation; over 72 GB they "
        "would not fit here.",
        columns(
            rows,
            [
                ("case", "{case}"), ("plan", "{plan}"), ("seconds", "{seconds:.2f}"),
                ("simulated", "{simulated:.2f}"), ("GB", "{gb:.0f}"), ("bound", "{bound:.2f}"),
                ("regret", "{worst:.1%}"), ("where", "{where}"),
                ("planned in", "{planner_seconds:.0f} s"), ("published recipes", recipes),
            ],
            left=(0, 1, 7, 9),
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    main(hybrid_cases)
