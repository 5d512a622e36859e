"""Import time, reading of graphs, and environment steps per second."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import gymnasium as gym
import numpy as np
from common import INSTANCES, ROOT, parser, progress, publish, table

from parenvs import Graph
from parenvs.instances import data_folder, manifest

IMPORT = "import time; begin = time.perf_counter(); import {}; print(time.perf_counter() - begin)"
Case = tuple[str, dict[str, Any]]
BASELINE: Case = ("CartPole-v1", {})
PIPELINES: list[Case] = [
    *(("PipelineCut-v0", {"instance": name, "cluster": "C"}) for name in INSTANCES),
    ("PipelineCut-v0", {"instance": "t5-3b", "cluster": "A"}),
    ("PipelineCut-v0", {"instance": "t5-3b", "cluster": "C", "stages": 8}),
    ("PipelineCut-v0", {"instance": "t5-3b", "cluster": "C", "candidates": "all"}),
]
PARTITIONS: list[Case] = [
    *(("OperatorPartition-v0", {"instance": name}) for name in ("t5-11b", "bert-48", "vgg-19")),
    ("OperatorPartition-v0", {"instance": "t5-11b", "linkage": False, "masked": True}),
    ("DataParallel-v0", {"instance": "t5-11b"}),
]
TARGET = 0.3
"""Steps a second over those of ``CartPole-v1``, asked of ``OperatorPartition-v0`` on T5-11B."""
DRAWN = 10_000
"""Actions that are drawn before an environment is timed."""


def import_seconds(module: str, repeats: int) -> list[float]:
    """Seconds of ``import`` in fresh interpreters, their own start not counted."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", IMPORT.format(module)]
    runs = (
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        for _ in range(repeats + 1)
    )
    return [float(run.stdout) for run in runs][1:]  # the first one fills the disk's cache


def repeated(action: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each of ``repeats`` calls, after one that does not count."""
    action()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - begin)
    return seconds


def proto_seconds(name: str, kind: str, repeats: int) -> tuple[list[float], float] | None:
    """Seconds of reading the HLO proto of a shipped model, and of lowering it; None without JAX."""
    try:
        import jax

        from parenvs.datasets.models import MODELS, forward, train_step
    except ImportError:
        return None
    function, arguments = (forward if kind == "forward" else train_step)(MODELS[name])
    begin = time.perf_counter()
    lowered = jax.jit(function, keep_unused=True).lower(*arguments)
    spent = time.perf_counter() - begin
    module: Any = lowered.compiler_ir("hlo")
    serialized = module.as_serialized_hlo_module_proto()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.pb"
        path.write_bytes(serialized)
        return repeated(partial(Graph.from_hlo, path), repeats), spent


def steps_per_second(env: gym.Env[Any, Any], seconds: float) -> float:
    """Steps a second of random legal actions, resets and the drawing of actions included."""
    _, info = env.reset(seed=0)
    env.action_space.seed(0)
    steps, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds:
        for _ in range(100):
            action = env.action_space.sample(info.get("action_mask"))
            _, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                _, info = env.reset()
        steps += 100
    return steps / spent


def drawn_actions(env: gym.Env[Any, Any]) -> tuple[list[int], float]:
    """Uniform legal actions of whole episodes, from one reset to the next, and mean steps of these.

    Resets of the suite's environments are all alike, so that the actions stay legal.
    """
    rng = np.random.default_rng(0)
    actions: list[int] = []
    episodes = 0
    while len(actions) < DRAWN:
        _, info = env.reset(seed=episodes)
        over = False
        while not over:
            legal = np.flatnonzero(info["action_mask"]) if "action_mask" in info else [0, 1]
            actions.append(int(rng.choice(legal)))
            _, _, terminated, truncated, info = env.step(actions[-1])
            over = terminated or truncated
        episodes += 1
    return actions, len(actions) / episodes


def replays_per_second(env: gym.Env[Any, Any], actions: list[int], seconds: float) -> float:
    """Steps a second of actions that are already there, resets included."""
    env.reset(seed=0)
    steps, begin = 0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds:
        env.reset()
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        steps += len(actions)
    return steps / spent


def environments(seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Speeds of the suite's environments and of CartPole-v1, in turns so that noise is shared."""
    cases = [*PIPELINES, *PARTITIONS, BASELINE]
    envs: list[gym.Env[Any, Any]] = [gym.make(name, **kwargs) for name, kwargs in cases]
    runs: list[list[float]] = [[] for _ in envs]
    for repeat in range(repeats):
        progress(f"environments, round {repeat + 1} of {repeats}")
        for env, speeds in zip(envs, runs, strict=True):
            speeds.append(steps_per_second(env, seconds))
    actions = [int(cast(gym.spaces.Discrete, env.action_space).n) for env in envs]
    return [
        {"id": name, "kwargs": kwargs, "actions": count, "steps_per_second": speeds}
        for (name, kwargs), count, speeds in zip(cases, actions, runs, strict=True)
    ]


def replays(seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Speeds without the drawing of actions, and their ratios to CartPole-v1 in the same round."""
    cases = [BASELINE, *PARTITIONS]
    envs: list[gym.Env[Any, Any]] = [gym.make(name, **kwargs) for name, kwargs in cases]
    drawn = [drawn_actions(env) for env in envs]
    rounds = []
    for repeat in range(repeats):
        progress(f"without drawing actions, round {repeat + 1} of {repeats}")
        pairs = zip(envs, drawn, strict=True)
        rounds.append([replays_per_second(env, actions, seconds) for env, (actions, _) in pairs])
    speeds = np.array(rounds).T
    return [
        {
            "id": name,
            "kwargs": kwargs,
            "mean_episode_steps": mean,
            "steps_per_second": row.tolist(),
            "over_cartpole": (row / speeds[0]).tolist(),
        }
        for (name, kwargs), (_, mean), row in zip(cases, drawn, speeds, strict=True)
    ]


def arguments_of(raw: dict[str, Any]) -> str:
    """Keyword arguments of an environment, in words."""
    return ", ".join(f"{key}={value}" for key, value in raw["kwargs"].items())


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--seconds", type=float, default=1.0, help="of each run of an environment")
    options.add_argument("--graph", default="t5-11b", choices=INSTANCES)
    chosen = options.parse_args()
    repeats, name = chosen.repeats, chosen.graph
    data: dict[str, Any] = {"repeats": repeats, "graph": name}
    rows = []

    def add(what: str, key: str, values: list[float], unit: str = "ms") -> None:
        data[key] = values
        scale = 1e3 if unit == "ms" else 1.0
        figures = (f"{scale * x:.4g} {unit}" for x in (median(values), min(values), max(values)))
        rows.append([what, *figures])

    progress("imports")
    add("`import parenvs`", "import_parenvs_s", import_seconds("parenvs", repeats))
    add("`import gymnasium` alone", "import_gymnasium_s", import_seconds("gymnasium", repeats))
    for kind in ("train", "forward"):
        progress(f"{name} {kind}")
        path = data_folder() / manifest()["instances"][name]["graphs"][kind]["file"]
        loads = repeated(partial(Graph.load, path), 4 * repeats)
        add(f"load `{path.name}`", f"npz_{kind}_s", loads)
    reading = proto_seconds(name, "train", repeats)
    if reading is not None:
        add(f"read the HLO proto of {name}, train", "proto_s", reading[0], "s")
        add("lower it with JAX, first time", "lower_s", [reading[1]], "s")
    data["environments"] = environments(chosen.seconds, repeats)
    data["replays"] = replays(chosen.seconds, repeats)
    sections = [
        table(["what", "median", "best", "worst"], rows),
        "Random legal steps through `gym.make`, resets included, median of "
        f"{repeats} runs of {chosen.seconds:g} s:",
        table(
            ["environment", "arguments", "actions", "steps/s", "best", "worst"],
            [
                [
                    raw["id"],
                    arguments_of(raw),
                    raw["actions"],
                    *(f"{f(raw['steps_per_second']):,.0f}" for f in (median, max, min)),
                ]
                for raw in data["environments"]
            ],
            left=2,
        ),
        "Without drawing actions: the same, but legal actions of whole episodes are drawn before, "
        "so that only the environments are timed, `CartPole-v1` and the others in turns. `/ "
        f"CartPole`: over the steps/s of `CartPole-v1` in the same round (asked: at least "
        f"{TARGET:g} on T5-11B):",
        table(
            ["environment", "arguments", "steps an episode", "steps/s", "/ CartPole", "worst"],
            [
                [
                    raw["id"],
                    arguments_of(raw),
                    f"{raw['mean_episode_steps']:.1f}",
                    f"{median(raw['steps_per_second']):,.0f}",
                    *(f"{f(raw['over_cartpole']):.2f}" for f in (median, min)),
                ]
                for raw in data["replays"]
            ],
            left=2,
        ),
    ]
    if reading is None:
        sections.append("Reading the HLO proto was left out: it needs the extra `jax`.")
    publish("speed", sections, data, chosen.out)


if __name__ == "__main__":
    main()
