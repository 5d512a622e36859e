"""Times this checkout beside another one, case by case, in turns, so that noise hits both alike.

    python benchmarks/beside.py ../other            # all cases
    python benchmarks/beside.py ../other Cut exact  # those whose name holds a word

Both run with this interpreter, each in a process of its own, and need no installation. Cases that
the other checkout does not know are left out. Nothing is written: the table is printed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

TURN = 0.12
"""Processor seconds of one measurement."""
ENVIRONMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "PipelineCut t5-3b": ("PipelineCut-v0", {"instance": "t5-3b", "cluster": "C"}),
    "PipelineCut vgg-19": ("PipelineCut-v0", {"instance": "vgg-19", "cluster": "C"}),
    "PipelinePlan t5-3b": ("PipelinePlan-v0", {"instance": "t5-3b", "cluster": "C"}),
    "PipelinePlan plan-test": ("PipelinePlan-v0", {"instance": "plan-test"}),
    "OperatorPartition t5-base": ("OperatorPartition-v0", {"instance": "t5-base"}),
    "DataParallel t5-base": ("DataParallel-v0", {"instance": "t5-base"}),
}
BATCHES = (8, 64, 1024)
PIPELINES = (
    "exact-pruned",
    "exact-points",
    "exact-full",
    "pretrained",
    "pretrained-refined",
    "beam",
)
PARTITIONS = ("exact", "greedy")


def single(env_id: str, kwargs: dict[str, Any]) -> Callable[[], int]:
    """Episodes of random legal actions in one environment; gives the number of steps."""
    import gymnasium as gym
    import numpy as np

    import parenvs  # noqa: F401 (registers the environments)

    env, rng = (
        gym.make(env_id, disable_env_checker=True, **kwargs).unwrapped,
        np.random.default_rng(0),
    )
    episodes: list[list[int]] = []
    while sum(map(len, episodes)) < 1000 and len(episodes) < 300:
        _, info = env.reset()
        actions, done = [], False
        while not done:
            actions.append(int(rng.choice(np.flatnonzero(info["action_mask"]))))
            _, _, done, _, info = env.step(actions[-1])
        episodes.append(actions)

    def play() -> int:
        for actions in episodes:
            env.reset()
            for action in actions:
                env.step(action)
        return sum(map(len, episodes))

    return play


def batch(env_id: str, kwargs: dict[str, Any], count: int) -> Callable[[], int]:
    """Steps of random legal actions in ``count`` environments at once."""
    import gymnasium as gym
    import numpy as np

    import parenvs  # noqa: F401

    envs = gym.make_vec(env_id, num_envs=count, vectorization_mode="vector_entry_point", **kwargs)
    rng, actions = np.random.default_rng(0), []
    _, info = envs.reset(seed=0)
    for _ in range(200 if count < 100 else 30):
        mask = info["action_mask"]
        actions.append((rng.random(mask.shape) * mask).argmax(axis=1))
        info = envs.step(actions[-1])[4]

    def play() -> int:
        envs.reset(seed=0)
        for one_step in actions:
            envs.step(one_step)
        return count * len(actions)

    return play


def planner(agent: str, task: str) -> Callable[[], int]:
    """One plan of T5-3B on cluster C, or of its variables on one server."""
    import parenvs
    from parenvs.tasks.partition.load import load_partitioning

    is_pipeline = task == "pipeline"  # names of tasks may differ between the two checkouts
    problem: Any = parenvs.problem("t5-3b", "C") if is_pipeline else None
    problem = problem or load_partitioning("t5-3b", "1x8:v100")

    def plan() -> int:
        parenvs.solve(problem, agent)
        return 1

    return plan


def cases() -> dict[str, Callable[[], Callable[[], int]]]:
    """Name of a case -> what prepares it."""
    known: dict[str, Callable[[], Callable[[], int]]] = {}
    for name, (env_id, kwargs) in ENVIRONMENTS.items():
        known[f"{name}, single"] = lambda e=env_id, k=kwargs: single(e, k)
        for count in BATCHES:
            known[f"{name}, {count}"] = lambda e=env_id, k=kwargs, n=count: batch(e, k, n)
    for task, agents in (("pipeline", PIPELINES), ("partition", PARTITIONS)):
        for agent in agents:
            known[f"{agent}, {task}"] = lambda a=agent, t=task: planner(a, t)
    return known


def serve() -> None:
    """Read names of cases, print the processor seconds of one unit of each."""
    known, prepared = cases(), {}
    for line in sys.stdin:
        name = line.strip()
        try:
            if name not in prepared:
                prepared[name] = known[name]()
                prepared[name]()
            begin, units = time.process_time(), 0
            while time.process_time() - begin < TURN:
                units += prepared[name]()
            print((time.process_time() - begin) / units, flush=True)
        except Exception as error:  # an older checkout
            print(f"none {error}".splitlines()[0], flush=True)


def main() -> None:
    """Print a row a case."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("other", type=Path, help="root of the other checkout")
    options.add_argument("words", nargs="*", help="cases whose name holds one of these")
    options.add_argument("--rounds", type=int, default=9)
    chosen = options.parse_args()
    here = Path(__file__).resolve()
    code = f"import runpy; runpy.run_path({str(here)!r}, run_name='serve')"
    roots = (chosen.other.resolve(), here.parents[1])
    sides = [
        subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(root)!r}); {code}"],
            cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for root in roots
    ]  # fmt: skip

    def ask(side: Any, name: str) -> str:
        side.stdin.write(name + "\n")
        side.stdin.flush()
        return side.stdout.readline().strip()

    print("| case | other, us | this, us | least over least | median of ratios |")
    print("|:--|--:|--:|--:|--:|")
    for name in cases():
        if chosen.words and not any(word in name for word in chosen.words):
            continue
        pairs = []
        for turn in range(chosen.rounds):
            order = sides if turn % 2 else sides[::-1]
            answers = {id(side): ask(side, name) for side in order}
            pairs.append([answers[id(side)] for side in sides])
        if any(answer.startswith("none") for pair in pairs for answer in pair):
            print(f"| {name} | | | | {pairs[0][0] if 'none' in pairs[0][0] else pairs[0][1]} |")
            continue
        seconds = [[float(answer) for answer in pair] for pair in pairs]
        before, after = (min(column) for column in zip(*seconds, strict=True))
        ratio = median(this / other for other, this in seconds)
        figures = (before * 1e6, after * 1e6, after / before, ratio)
        print(f"| {name} | {' | '.join(f'{figure:.2f}' for figure in figures)} |", flush=True)


if __name__ == "__main__":
    main()
elif __name__ == "serve":
    serve()
