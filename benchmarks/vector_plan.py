"""``PipelinePlan-v0``, single and batched: steps a second, drawn problems, memory."""

from __future__ import annotations

import time
import tracemalloc
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
from common import parser, progress, publish, table
from vector_cut import BASELINE, Case, drawn, speeds

ID = "PipelinePlan-v0"
SIZES = (1, 8, 64, 1024)
DRAWN = (8, 64)
"""Batches of drawn problems: larger ones take seconds to reset."""
BASE = {"instance": "t5-base", "cluster": "C"}
CASES: dict[str, Case] = {
    BASELINE: (BASELINE, {}),
    "t5-base, C": (ID, BASE),
    "t5-11b, 16 servers of 8, 8 stages": (
        ID,
        {"instance": "t5-11b", "cluster": "16x8:a100", "stages": 8},
    ),
}
VIEWS = "t5-base, C, copy=False"
"""Of batches only."""
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


def memory(what: str, kwargs: dict[str, Any], count: int) -> dict[str, Any]:
    """Bytes that each environment of a batch adds; those of gymnasium's bounds apart."""
    progress(f"memory: {what}")
    held, peak, bounds = [], 0, 0.0
    for size in (1, count):
        tracemalloc.start()
        envs: Any = gym.make_vec(ID, num_envs=size, **kwargs)
        infos = envs.reset(seed=0)[1]
        held.append(tracemalloc.get_traced_memory()[0])
        boxes = [space for space in envs.observation_space.values() if hasattr(space, "low")]
        kept = ("low", "high", "bounded_below", "bounded_above")
        bounds = sum(getattr(box, key).nbytes for box in boxes for key in kept) / size
        rng = np.random.default_rng(0)
        tracemalloc.reset_peak()
        infos = envs.step(drawn(rng, infos, size))[-1]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    each = (held[1] - held[0]) / (count - 1)
    step = (peak - held[1]) / count
    return {
        "what": what,
        "envs": count,
        "state": each - bounds,
        "bounds": bounds,
        "in_a_step": step,
    }


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--seconds", type=float, default=0.5, help="of each run")
    options.add_argument("--envs", type=int, nargs="*", default=SIZES)
    asked = options.parse_args()
    seconds, repeats = asked.seconds, asked.repeats
    batches = {**CASES, VIEWS: (ID, {**BASE, "copy": False})}
    rows = [
        row
        for n in (0, *asked.envs)
        for row in speeds(batches if n else CASES, n, seconds, repeats)
    ]
    found = sources(seconds, repeats)
    memories = [
        memory("t5-base, C", BASE, 1024),
        memory(VIEWS, {**BASE, "copy": False}, 1024),
        memory("inside", {}, 128),
        memory("outside", {"ranges": "outside"}, 128),
    ]
    alone = {row["what"]: median(row["steps_per_second"]) for row in rows if not row["envs"]}
    alone[VIEWS] = alone["t5-base, C"]
    own = {row["what"]: median(row["steps_per_second"]) for row in found if row["kind"] == "single"}
    sections = [
        "Random legal steps on one core, resets included, observations and masks written; steps a "
        f"second of processor time, median of {repeats} runs of {seconds:g} s, all in turns. "
        '`envs`: at once, by `gym.make_vec`; "single" by `gym.make`. `/ single`: over the single '
        "environment. `/ CartPole`: over gymnasium's `CartPole-v1` with as many envs in the same "
        "round, median and worst. `of copying`: the time that `np.copyto` takes for the bytes of "
        "the observation, over that of a step; more than 100 % as what all share is written from "
        "one row, not copied. With `copy=False` it is a view.",
        table(
            ["environment", "envs", "steps/s", "/ single", "/ CartPole", "worst",
             "observation, bytes an env", "of copying"],
            [
                [
                    row["what"],
                    row["envs"] or "single",
                    f"{median(row['steps_per_second']):,.0f}",
                    f"{median(row['steps_per_second']) / alone[row['what']]:.1f}",
                    f"{median(row['over_cartpole']):.2f}",
                    f"{min(row['over_cartpole']):.2f}",
                    f"{row['observation_bytes']:,.0f}",
                    f"{100 * median(row['of_copying']):.0f} %",
                ]
                for row in sorted(rows, key=lambda row: list(batches).index(row["what"]))
            ],
        ),
        "Problems that are drawn: most of the time goes into drawing them, or into `PlanSpace`. "
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
        "Memory that each environment adds to a batch, in bytes: what the batch keeps; the bounds "
        "that gymnasium keeps of a batched observation space; what a step allocates at most, "
        "results included:",
        table(
            ["problems", "envs", "state", "bounds", "in a step"],
            [
                [
                    row["what"],
                    f"{row['envs']:,}",
                    *(f"{row[key]:,.0f}" for key in ("state", "bounds", "in_a_step")),
                ]
                for row in memories
            ],
        ),
    ]  # fmt: skip
    data = {"repeats": repeats, "speeds": rows, "drawn": found, "memory": memories}
    publish("vector_plan", sections, data, asked.out)


if __name__ == "__main__":
    main()
