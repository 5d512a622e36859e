"""MaskablePPO and random search against the proven optimum of the pruned space.

Every run is one line of ``ppo.jsonl``; a second invocation runs only what is missing.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
from common import (
    CLUSTERS,
    INSTANCES,
    Solved,
    parser,
    percent,
    problem,
    progress,
    publish,
    solve,
    table,
)
from runs import append, reached, read, run_all

from parenvs.agents.exact import exact_pruned
from parenvs.candidates import CutSpace

OPTIMAL = 1e-3
"""A plan reaches the optimum if its value is within this share of it."""


@dataclass(frozen=True)
class Run:
    """One training run; equal runs have equal keys."""

    instance: str
    cluster: str
    seed: int
    steps: int
    stop: bool

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Instance, cluster, seed and a hash of everything else that decides the run."""
        return (self.instance, self.cluster, self.seed, _settings(self)[0])


@cache
def optimum(instance: str, cluster: str) -> tuple[CutSpace, Solved]:
    """The pruned space with one stage a server, and its optimum."""
    space = CutSpace.build(problem(instance, cluster))
    return space, solve(space.pipeline, lambda: exact_pruned(space))


def perform(run: Run) -> dict[str, Any]:
    """Train, evaluate the greedy policy, and search at random as long as the agent did."""
    from parenvs.agents.evaluate import evaluate
    from parenvs.agents.heuristics import random_search
    from parenvs.agents.train import Config, train

    space, best = optimum(run.instance, run.cluster)
    assert best.value is not None and best.length_seconds is not None
    kwargs = {"instance": run.instance, "cluster": run.cluster}
    config = Config(env_kwargs=kwargs, seed=run.seed, steps=run.steps)
    target = best.value * (1 - OPTIMAL)
    result, model = train(config, target=target, stop_at_target=run.stop)
    evaluation = evaluate(model, config, episodes=1, seed=run.seed)
    generator = np.random.default_rng(run.seed)
    found = random_search(space, result.episodes, generator)
    fits = space.pipeline.excess_bytes(found.cuts, found.device_cuts) <= 0
    digest, settings = _settings(run)
    return {
        **asdict(run),
        "settings_hash": digest,
        "settings": settings,
        "optimum": best.value,
        "candidates": len(space.pivots),
        **{key: value for key, value in asdict(result).items() if key != "steps"},
        "steps_done": result.steps,
        "greedy_value": evaluation.greedy_value,
        "random_gap": float(found.length / best.length_seconds - 1) if fits else None,
    }


def row(instance: str, cluster: str, records: list[dict[str, Any]], steps: int) -> list[str]:
    """The table's row of one problem."""
    space, best = optimum(instance, cluster)
    cells = [instance, cluster, str(space.stages), str(len(space.pivots)), f"{best.value:.4f}"]
    if not records:
        return [*cells, "no run yet", *[""] * 7]
    cells.append(f"{sum(map(reached, records))} of {len(records)}")
    for key, form, most in (
        ("target_steps", ",.0f", f"> {steps:,}"),
        ("target_seconds", ".1f", "not reached"),
    ):
        values = [record[key] if reached(record) else np.inf for record in records]
        shown = (float(np.median(values)), max(values))
        cells += [format(value, form) if np.isfinite(value) else most for value in shown]
    gaps = [np.inf if x["random_gap"] is None else x["random_gap"] for x in records]
    gap = float(np.median(gaps))
    greedy = sum(x["greedy_value"] >= x["optimum"] * (1 - OPTIMAL) for x in records)
    cells.append(percent(gap) if np.isfinite(gap) else "none fits")
    lucky = sum(x <= 1 / (1 - OPTIMAL) - 1 for x in gaps)
    return [*cells, f"{lucky} of {len(records)}", f"{greedy} of {len(records)}"]


def _settings(run: Run) -> tuple[str, dict[str, Any]]:
    """A hash of what decides a run beside its instance, cluster and seed; and that."""
    from parenvs.agents import ppo
    from parenvs.agents.learners import POLICY

    space, _ = optimum(run.instance, run.cluster)
    content = {
        "agent": ppo.settings("PipelineCut-v0", space.stages - 1),
        "policy": POLICY,
        "envs": ppo.ENVS["PipelineCut-v0"],
        "steps": run.steps,
        "stop_at_target": run.stop,
        "tolerance": OPTIMAL,
        "fingerprint": space.pipeline.profile.fingerprint,
        "candidates": len(space.pivots),
    }
    raw = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(raw.encode()).hexdigest()[:16], content


def main() -> None:
    """Run what is missing, print and write."""
    options = parser(__doc__)
    options.add_argument("--instances", nargs="+", default=INSTANCES, choices=INSTANCES)
    options.add_argument("--clusters", nargs="+", default=CLUSTERS)
    options.add_argument("--seeds", type=int, default=5, help="seeds 0 to this less one")
    options.add_argument("--steps", type=int, default=60_000, help="environment steps")
    options.add_argument("--stop", action="store_true", help="end a run when it is at the optimum")
    options.add_argument("--jobs", type=int, default=1, help="processes")
    chosen = options.parse_args()
    problems = [(name, cluster) for name in chosen.instances for cluster in chosen.clusters]
    infeasible = [pair for pair in problems if optimum(*pair)[1].status == "infeasible"]
    wanted = [
        Run(*pair, seed, chosen.steps, chosen.stop)
        for seed in range(chosen.seeds)
        for pair in problems
        if pair not in infeasible
    ]
    path = chosen.out / "ppo.jsonl"
    done = {(x["instance"], x["cluster"], x["seed"], x["settings_hash"]): x for x in read(path)}
    missing = [run for run in wanted if run.key not in done]
    for number, record in enumerate(run_all(perform, missing, chosen.jobs), 1):
        append(path, {**record, "jobs": chosen.jobs})
        names = f"{record['instance']} {record['cluster']} seed {record['seed']}"
        steps = f"{record['target_steps']} steps" if reached(record) else "not reached"
        progress(f"{number}/{len(missing)} {names}: {steps}, {record['seconds']:.1f} s")
    done = {(x["instance"], x["cluster"], x["seed"], x["settings_hash"]): x for x in read(path)}
    records = [done[run.key] for run in wanted]
    rows = [
        row(*pair, [x for x in records if (x["instance"], x["cluster"]) == pair], chosen.steps)
        for pair in problems
        if pair not in infeasible
    ]
    header = ["instance", "cluster", "stages", "candidates", "optimum, 1/L", "seeds that reach it"]
    header += ["steps, median", "worst", "seconds, median", "worst"]
    header += ["random search, median gap", "random search reaches it", "greedy policy reaches it"]
    jobs = sorted({x["jobs"] for x in records})
    end = "when the optimum is reached" if chosen.stop else "at the end"
    sections = [
        f"Reached: 1/L of a sampled plan within {percent(OPTIMAL, 1)} of the proven optimum of the "
        f"pruned space, within {chosen.steps:,} environment steps; seeds 0 to {chosen.seeds - 1}. "
        "Random search judges as many plans as the agent did; its gap is L over the optimum's. The "
        f"greedy policy is that of the agent {end}. {' or '.join(map(str, jobs))} run(s) at a "
        "time, each on one thread.",
        table(header, rows, left=2),
        f"{sum(map(reached, records))} of {len(records)} runs reached the optimum. No plan fits "
        f"the memory: {', '.join(map(' '.join, infeasible)) or 'nowhere'}.",
    ]
    publish("ppo", sections, {"infeasible": infeasible, "runs": records}, chosen.out)


if __name__ == "__main__":
    main()
