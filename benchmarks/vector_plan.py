"""``PipelinePlan-v0``, single and batched: steps a second, drawn problems, memory."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
from common import parser, progress, publish, table

from parenvs.bench import speed_table as tables
from parenvs.bench.play import BASELINE, VIEWS, Case, drawn, speeds
from parenvs.bench.scaling import memory

ID = "PipelinePlan-v0"
SIZES = (1, 8, 64, 1024)
DRAWN = (8, 64)
"""Batches of drawn problems: larger ones take seconds to reset."""
BASE = {"instance": "t5-base", "cluster": "C"}
CASES: dict[str, Case] = {
    BASELINE: (BASELINE, {}),
    "t5-base, C": (ID, BASE),
    f"t5-base, C{VIEWS}": (ID, {**BASE, "copy": False}),
    "t5-11b, 16 servers of 8, 8 stages": (
        ID,
        {"instance": "t5-11b", "cluster": "16x8:a100", "stages": 8},
    ),
}
SOURCES: dict[str, dict[str, Any]] = {
    "inside, repeat=1": {},
    "inside, repeat=50": {"repeat": 50},
    "outside, repeat=50": {"ranges": "outside", "repeat": 50},
    "plan-test, repeat=50": {"instance": "plan-test", "repeat": 50},
}


def single_speed(env: gym.Env[Any, Any], seconds: float) -> float:
    """Steps a second of processor time, resets included; what draws actions is not timed."""
    rng, spent, steps = np.random.default_rng(0), 0.0, 0
    _, info = env.reset(seed=0)
    while spent < seconds:
        action = int(drawn(rng, info, 1)[0])
        begin = time.process_time()
        *_, terminated, _, info = env.step(action)
        if terminated:
            _, info = env.reset()
        spent += time.process_time() - begin
        steps += 1
    return steps / spent


def batch_speed(envs: gym.vector.VectorEnv[Any, Any, Any], seconds: float) -> float:
    """The same of a batch; steps that only start an episode count, as in every batch."""
    rng, spent, steps = np.random.default_rng(0), 0.0, 0
    _, info = envs.reset(seed=0)
    while spent < seconds:
        actions = drawn(rng, info, envs.num_envs)
        begin = time.process_time()
        info = envs.step(actions)[-1]
        spent += time.process_time() - begin
        steps += envs.num_envs
    return steps / spent


def sources(seconds: float, repeats: int) -> list[dict[str, Any]]:
    """Steps a second where problems are drawn: single, ``SyncVectorEnv``, batched, in turns."""
    rows = []
    for what, kwargs in SOURCES.items():
        kinds: dict[tuple[str, int], Any] = {("single", 1): gym.make(ID, **kwargs)}
        for count in DRAWN:
            for name, mode in (("SyncVectorEnv", "sync"), ("batched", "vector_entry_point")):
                kinds[name, count] = gym.make_vec(ID, count, mode, **kwargs)
        runs: dict[tuple[str, int], list[float]] = {kind: [] for kind in kinds}
        for repeat in range(repeats):
            progress(f"{what}: round {repeat + 1} of {repeats}")
            for kind, env in kinds.items():
                play = single_speed if kind[0] == "single" else batch_speed
                runs[kind].append(play(env, seconds))
        rows += [
            {"what": what, "kind": name, "envs": count, "steps_per_second": runs[name, count]}
            for name, count in kinds
        ]
    return rows


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__, repeats=5, seconds=0.5)
    options.add_argument("--envs", type=int, nargs="*", default=SIZES)
    asked = options.parse_args()
    seconds, repeats = asked.seconds, asked.repeats
    rows = speeds(CASES, (0, *asked.envs), seconds, repeats, progress)
    found = sources(seconds, repeats)
    memories = []
    for what, kwargs, count in (
        ("t5-base, C", BASE, 1024),
        (f"t5-base, C{VIEWS}", {**BASE, "copy": False}, 1024),
        ("inside", {}, 128),
        ("outside", {"ranges": "outside"}, 128),
    ):
        progress(f"memory: {what}")
        memories.append(memory(what, (ID, kwargs), count))
    own = {row["what"]: median(row["steps_per_second"]) for row in found if row["kind"] == "single"}
    sections = [
        tables.preface(seconds, repeats),
        tables.environments(rows),
        "Problems that are drawn: most of the time goes into drawing them, or into `PointSpace`. "
        "Steps a second in `step` and `reset`, as above; a set is read before.",
        table(
            ["problems", "by", "envs", "steps/s", "/ single"],
            [
                [
                    row["what"],
                    row["kind"],
                    row["envs"],
                    f"{median(row['steps_per_second']):,.0f}",
                    f"{median(row['steps_per_second']) / own[row['what']]:.1f}",
                ]
                for row in found
            ],
            left=2,
        ),
        *tables.memory(memories),
    ]
    data = {"repeats": repeats, "speeds": rows, "drawn": found, "memory": memories}
    publish("vector_plan", sections, data, asked.out)


if __name__ == "__main__":
    main()
