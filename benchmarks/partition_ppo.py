"""MaskablePPO on the partition environments, against the proven optimum and random search.

Every run is one line of ``partition_ppo.jsonl``; a second invocation runs only what is missing.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.common import INSTANCES, parser, percent, progress, publish, table
from parenvs.agents.partition.heuristics import greedy, partition_all, random_search
from parenvs.agents.reference import optimum, target
from parenvs.bench import runs as lines
from parenvs.bench.runs import append, read, run_all
from parenvs.core.judge import OPTIMAL
from parenvs.tasks.partition.space import PartitionSpace

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper": ("OperatorPartition-v0", {}),
    "paper, automap": ("OperatorPartition-v0", {"rules": "automap"}),
    "step_time": ("OperatorPartition-v0", {"reward": "step_time"}),
    "step_time, automap": ("OperatorPartition-v0", {"reward": "step_time", "rules": "automap"}),
    "paper, linkage=False": ("OperatorPartition-v0", {"linkage": False}),
    "paper, linkage=False, masked": ("OperatorPartition-v0", {"linkage": False, "masked": True}),
    "data-parallel, paper": ("DataParallel-v0", {}),
    "data-parallel, step_time": ("DataParallel-v0", {"reward": "step_time"}),
}


@dataclass(frozen=True)
class PartitionRun:
    """One training run; equal runs have equal keys."""

    variant: str
    instance: str
    seed: int
    steps: int

    @property
    def kwargs(self) -> dict[str, Any]:
        """Arguments of the environment."""
        return {"instance": self.instance, **VARIANTS[self.variant][1]}

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Variant, instance, seed and a hash of everything else that decides the run."""
        return (self.variant, self.instance, self.seed, settings(self)[0])


def key_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """The key of the run that left a record."""
    return tuple(record[name] for name in ("variant", "instance", "seed", "settings_hash"))


def reached(record: dict[str, Any]) -> bool:
    """Whether the run reached its target within its steps."""
    return lines.reached(record, "steps")


def space_of(run: PartitionRun) -> PartitionSpace:
    """The search space of the run's environment."""
    space = gym.make(VARIANTS[run.variant][0], **run.kwargs).get_wrapper_attr("game").space
    assert isinstance(space, PartitionSpace)
    return space


def target_of(space: PartitionSpace) -> tuple[float, float]:
    """Return of the optimum, and the return from which an episode counts as one."""
    best = optimum(space)
    return best, target(space.reward, best)


def perform(run: PartitionRun) -> dict[str, Any]:
    """Train, then search at random for as many episodes; returns the record."""
    from parenvs.agents.learning.train.run import Config, train

    space = space_of(run)
    best, target = target_of(space)
    env_id = VARIANTS[run.variant][0]
    config = Config(env_id, run.kwargs, seed=run.seed, steps=run.steps)
    result, _ = train(config, target=target, stop_at_target=True)
    draws = random_returns(run, space, result.episodes)
    digest, content = settings(run)
    return {
        **asdict(run),
        "settings_hash": digest,
        "settings": content,
        "optimum": best,
        "target": target,
        "dimensions": len(space.dimensions),
        "questions": len(space.questions),
        **{k: v for k, v in asdict(result).items() if k not in ("steps", "actions")},
        "steps_done": result.steps,
        "random_value": draws,
        "ones_value": partition_all(space).value,
        "greedy_heuristic_value": greedy(space).value,
    }


def random_returns(run: PartitionRun, space: PartitionSpace, episodes: int) -> float:
    """The best return of ``episodes`` random episodes of the run's environment."""
    rng = np.random.default_rng(run.seed)
    if space.linkage:
        return random_search(space, episodes, rng).value
    env = gym.make(VARIANTS[run.variant][0], **run.kwargs)
    best = -np.inf
    for _ in range(episodes):
        _, info = env.reset()
        total, over = 0.0, False
        while not over:
            legal = np.flatnonzero(info["action_mask"])
            _, reward, over, _, info = env.step(legal[rng.integers(len(legal))])
            total += float(reward)
        best = max(best, total)
    return float(best)


def settings(run: PartitionRun) -> tuple[str, dict[str, Any]]:
    """Everything that decides a run besides its variant, instance and seed; its hash first."""
    from parenvs.agents.learning.train.learners import POLICY, PPO_ENVS, ppo_settings

    space = space_of(run)
    env_id = VARIANTS[run.variant][0]
    content = {
        "agent": ppo_settings(env_id, len(space.questions)),
        "policy": POLICY,
        "envs": PPO_ENVS[env_id],
        "env_kwargs": run.kwargs,
        "steps": run.steps,
        "tolerance": OPTIMAL,
        "fingerprint": space.problem.graph.fingerprint,
    }
    raw = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(raw.encode()).hexdigest()[:16], content


def row(records: list[dict[str, Any]]) -> list[str]:
    """The table's row of one variant of one instance."""
    one = records[0]
    digits = 4 if "step_time" in one["variant"] else 1
    done = [x for x in records if reached(x)]
    cells = [one["variant"], one["instance"], str(one["questions"]), f"{one['optimum']:.{digits}f}"]
    cells.append(f"{len(done)} of {len(records)}")
    for key, form in (("target_steps", ",.0f"), ("target_seconds", ".2f")):
        cells.append(f"{median(x[key] for x in done):{form}}" if done else "")
    cells.append(f"{median(x['episodes'] for x in done):,.0f}" if done else "")
    cells.append(f"{median(x['value'] for x in records):.{digits}f}")
    cells.append(f"{sum(x['random_value'] >= x['target'] for x in records)} of {len(records)}")
    for key in ("ones_value", "greedy_heuristic_value"):
        same = one[key] >= one["target"]
        cells.append("optimal" if same else f"{one[key]:.{digits}f}")
    return cells


def main() -> None:
    """Run what is missing, print and write."""
    options = parser(__doc__)
    options.add_argument("--instances", nargs="+", default=INSTANCES, choices=INSTANCES)
    options.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    options.add_argument("--seeds", type=int, default=5, help="seeds 0 to this less one")
    options.add_argument("--steps", type=int, default=150_000, help="environment steps")
    options.add_argument("--jobs", type=int, default=1, help="processes")
    chosen = options.parse_args()
    wanted = [
        PartitionRun(variant, instance, seed, chosen.steps)
        for seed in range(chosen.seeds)
        for variant in chosen.variants
        for instance in chosen.instances
        if possible(variant, instance)
    ]
    path = chosen.out / "partition_ppo.jsonl"
    done = read(path, key_of)
    missing = [run for run in wanted if run.key not in done]
    for number, record in enumerate(run_all(perform, missing, chosen.jobs), 1):
        append(path, {**record, "jobs": chosen.jobs})
        names = f"{record['variant']} {record['instance']} seed {record['seed']}"
        steps = f"{record['target_steps']} steps" if reached(record) else "not reached"
        progress(f"{number}/{len(missing)} {names}: {steps}, {record['seconds']:.1f} s")
    done = read(path, key_of)
    records = [done[run.key] for run in wanted]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["variant"], record["instance"]), []).append(record)
    header = ["variant", "instance", "questions", "optimum", "seeds that reach it"]
    header += ["steps, median", "seconds, median", "episodes, median", "best return, median"]
    header += ["random search reaches it", "constant action 1", "greedy heuristic"]
    order = [(v, i) for v in chosen.variants for i in chosen.instances if (v, i) in groups]
    jobs = sorted({x["jobs"] for x in records})
    sections = [
        "One server of 8 V100. Reached: the paper's return, or the step time, of a sampled "
        f"episode within {percent(OPTIMAL, 1)} of the proven optimum's, within {chosen.steps:,} "
        f"environment steps; seeds 0 to {chosen.seeds - 1}; a run ends there. Steps, seconds "
        "and episodes are those of the runs that reach it. Random search plays as many episodes as "
        "the agent did, uniform among the actions that the mask allows. Greedy heuristic: GWMIN. "
        f"{' or '.join(map(str, jobs))} run(s) at a time, each on one thread.",
        table(header, [row(groups[pair]) for pair in order], left=2),
        f"{sum(map(reached, records))} of {len(records)} runs reached the optimum.",
    ]
    publish("partition_ppo", sections, {"runs": records}, chosen.out)


def possible(variant: str, instance: str) -> bool:
    """Whether the variant's environment has anything to decide on the instance."""
    from parenvs.errors import InfeasibleError

    try:
        space_of(PartitionRun(variant, instance, 0, 1))
    except InfeasibleError:
        return False
    return True


if __name__ == "__main__":
    main()
