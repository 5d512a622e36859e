"""Hold the exact planners against brute force: ``python benchmarks/brute_force.py [cases]``."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import brute_force as bf  # noqa: E402

from parenvs.agents import exact, prefixes  # noqa: E402
from parenvs.agents.answer import Answer  # noqa: E402
from parenvs.agents.exact import exact_full, exact_pruned  # noqa: E402
from parenvs.agents.memory import least_excess, least_excess_pruned  # noqa: E402
from parenvs.errors import InfeasibleError  # noqa: E402
from parenvs.pipeline import Pipeline  # noqa: E402


def _some_plan(
    pipeline: Pipeline, plans: tuple[np.ndarray, np.ndarray], rng: np.random.Generator
) -> Answer | None:
    if rng.random() < 0.5:
        return None
    i = rng.integers(len(plans[0]))
    cuts, device_cuts = plans[0][i], plans[1][i]
    return Answer(cuts, device_cuts, float(pipeline.length(cuts, device_cuts)), "some plan")


def check(kind: str, seed: int) -> str:
    """Compare one random case; returns its kind of outcome."""
    rng = np.random.default_rng([seed, kind == "full"])
    if kind == "full":
        pipeline, stages = bf.random_pipeline(rng)
        plans = bf.all_plans(pipeline, stages)
        best = bf.best_of(pipeline, plans)
        excess = least_excess(pipeline, stages)[2]
    else:
        space = bf.random_space(rng)
        pipeline = space.pipeline
        best = bf.best_of(pipeline, bf.legal_plans(space))
        excess = least_excess_pruned(space)[2]
    if abs(excess - best.excess) > 0.5:
        return f"WRONG: {kind} case {seed}: least excess {excess}, brute force {best.excess}"
    try:
        if kind == "full":
            # Every other case starts from some plan, so that the bounds have something to cut.
            answer = exact_full(pipeline, stages, _some_plan(pipeline, plans, rng))
        else:
            answer = exact_pruned(space)
    except InfeasibleError:
        return "infeasible" if best.length == np.inf else f"WRONG: {kind} case {seed}: infeasible"
    again = float(pipeline.length(answer.cuts, answer.device_cuts))
    fits = pipeline.excess_bytes(answer.cuts, answer.device_cuts) <= 0
    if not (answer.length == again and fits and answer.status == "optimal"):
        return f"WRONG: {kind} case {seed}: {answer}"
    if abs(answer.length - best.length) > 1e-9 * best.length:
        return f"WRONG: {kind} case {seed}: {answer.length}, brute force {best.length}"
    return "equal"


def main(cases: int = 500) -> int:
    """Print a line for each planner; the exit status counts the wrong cases."""
    exact._MANY, prefixes._BLOCKS = 0, 4  # the bounds meant for large graphs, on these small ones
    wrong = 0
    for kind in ("pruned", "full"):
        begin = time.perf_counter()
        outcomes = Counter(check(kind, seed) for seed in range(cases))
        bad = [x for x in outcomes if x.startswith("WRONG")]
        wrong += len(bad)
        print(
            f"exact_{kind}: {cases} cases, {outcomes['equal']} equal to brute force, "
            f"{outcomes['infeasible']} infeasible in both, {len(bad)} wrong, "
            f"{time.perf_counter() - begin:.1f} s"
        )
        print("\n".join(bad[:5]), end="\n" if bad else "")
    return wrong


if __name__ == "__main__":
    raise SystemExit(min(main(*map(int, sys.argv[1:])), 1))
