"""``PipelineCut-v0``, single and batched: steps a second, growth, memory."""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
from common import parser, progress, publish, table

from parenvs import StageProfile

ID, BASELINE = "PipelineCut-v0", "CartPole-v1"
SIZES = (1, 8, 64, 1024, 8192)
PIVOTS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
WINDOWED, WIDE = 192, 129
"""Pivots of chains of about 128 candidates: in three windows, and all of them in each."""
EPISODES = 8
"""Episodes of a pass of a batch; of a single environment, many times as many."""
Case = tuple[str, dict[str, Any]]
Play = tuple[Callable[[], None], int]


def chain(pivots: int, folder: Path) -> str:
    """Path of a chain of random pivots."""
    rng = np.random.default_rng(0)
    profile = StageProfile(
        name=f"chain {pivots}",
        names=np.array([f"p{i}" for i in range(pivots)], dtype=object),
        forward=1e-3 * (0.5 + rng.random(pivots)),
        backward=2e-3 * (0.5 + rng.random(pivots)),
        cut_bytes=1e6 * rng.integers(1, 9, pivots),
        parameter_bytes=1e6 * rng.integers(1, 9, pivots),
    )
    path = folder / f"{profile.name}.csv"
    profile.to_csv(path)
    return str(path)


def cases(folder: Path) -> dict[str, Case]:
    """Environments by what is said of them."""
    everything = {"candidates": "all", "cluster": "C"}
    wide = {**everything, "instance": chain(WIDE, folder), "radius": 32}
    return {
        BASELINE: (BASELINE, {}),
        f"{WINDOWED} pivots": (ID, {**everything, "instance": chain(WINDOWED, folder)}),
        f"{WIDE} pivots, any device cut": (ID, wide),
        f"{WIDE} pivots, any device cut, 8 stages": (ID, {**wide, "stages": 8}),
        "vgg-19, C": (ID, {"instance": "vgg-19", "cluster": "C"}),
        "t5-base, C": (ID, {"instance": "t5-base", "cluster": "C"}),
        "t5-3b, C": (ID, {"instance": "t5-3b", "cluster": "C"}),
    }


def drawn(rng: np.random.Generator, info: dict[str, Any], count: int) -> np.ndarray:
    """(count,) uniform legal actions."""
    masks = np.reshape(info.get("action_mask", np.ones((count, 2))), (count, -1))
    return (rng.random(masks.shape) * masks).argmax(axis=1)


def batch_play(envs: gym.vector.VectorEnv[Any, Any, Any], episodes: int = EPISODES) -> Play:
    """A function that plays whole episodes, resets included, and the steps that this makes."""
    rng, actions = np.random.default_rng(0), []
    _, info = envs.reset(seed=0)
    length = int(getattr(envs.unwrapped, "episode_steps", 3)) + 1
    for _ in range(episodes * length):
        actions.append(drawn(rng, info, envs.num_envs))
        info = envs.step(actions[-1])[-1]

    def play() -> None:
        envs.reset(seed=0)
        for one in actions:
            envs.step(one)

    return play, len(actions) * envs.num_envs


def single_play(env: gym.Env[Any, Any]) -> Play:
    """The same of a single environment, whose resets are calls of their own and no steps."""
    rng, actions = np.random.default_rng(0), []
    _, info = env.reset(seed=0)
    over = False
    while len(actions) < 100 * EPISODES or not over:
        actions.append(int(drawn(rng, info, 1)[0]))
        _, _, terminated, truncated, info = env.step(actions[-1])
        over = terminated or truncated
        if over:
            _, info = env.reset()

    def play() -> None:
        env.reset(seed=0)
        for one in actions:
            _, _, terminated, truncated, _ = env.step(one)
            if terminated or truncated:
                env.reset()

    return play, len(actions)


def speed(play: Callable[[], None], steps: int, seconds: float) -> float:
    """Steps a second of processor time."""
    passes, begin = 0, time.process_time()
    while (spent := time.process_time() - begin) < seconds or not passes:
        play()
        passes += 1
    return steps * passes / spent


def copies(bytes_: int, seconds: float) -> float:
    """How many times a second ``np.copyto`` copies so many bytes."""
    source, target = np.ones((2, bytes_), dtype=np.uint8)

    def play() -> None:
        for _ in range(20):
            np.copyto(target, source)

    return speed(play, 20, seconds)


def observed_bytes(observation: Any) -> int:
    """Bytes of an observation."""
    parts = observation.values() if isinstance(observation, dict) else [observation]
    return sum(np.asarray(part).nbytes for part in parts)


def speeds(
    chosen: dict[str, Case], count: int, seconds: float, repeats: int
) -> list[dict[str, Any]]:
    """All cases in turns, ``count`` at once; 0 for a single one by ``gym.make``."""
    plays, sizes, candidates = [], [], []
    for name, kwargs in chosen.values():
        if count:
            envs: Any = gym.make_vec(name, count, "vector_entry_point", **kwargs)
            sizes.append(observed_bytes(envs.reset()[0]))
            candidates.append(int(envs.single_action_space.n))
            plays.append(batch_play(envs))
        else:
            env: Any = gym.make(name, **kwargs)
            sizes.append(observed_bytes(env.reset()[0]))
            candidates.append(int(env.action_space.n))
            plays.append(single_play(env))
    runs = []
    for repeat in range(repeats):
        progress(f"{count or 'single'}: round {repeat + 1} of {repeats}")
        steps = [speed(*play, seconds) for play in plays]
        runs.append((steps, [copies(size, seconds / 10) * max(count, 1) for size in sizes]))
    return [
        {
            "what": what,
            "actions": candidates[k],
            "envs": count,
            "observation_bytes": sizes[k] / max(count, 1),
            "steps_per_second": [steps[k] for steps, _ in runs],
            "over_cartpole": [steps[k] / steps[0] for steps, _ in runs],
            "of_copying": [steps[k] / copied[k] for steps, copied in runs],
        }
        for k, what in enumerate(chosen)
    ]


def growth(pivots: int, count: int, folder: Path, seconds: float, repeats: int) -> dict[str, Any]:
    """A batch on a chain of which every pivot may be cut."""
    progress(f"{pivots} pivots")
    arguments = {"instance": chain(pivots, folder), "cluster": "C", "candidates": "all"}
    begin = time.process_time()
    envs: Any = gym.make_vec(ID, num_envs=count, **arguments)
    made = time.process_time() - begin
    size = observed_bytes(envs.reset()[0])
    batch = batch_play(envs, 1)
    runs = [speed(*batch, seconds) for _ in range(repeats)]
    copied = [copies(size, seconds / 10) * count for _ in range(repeats)]
    tables = [value for value in vars(envs.kernel).values() if isinstance(value, np.ndarray)]
    return {
        "pivots": pivots,
        "actions": int(envs.single_action_space.n),
        "tabulated": envs.kernel.tabulated,
        "making_s": made,
        "table_bytes": sum(x.nbytes for x in [*tables, *sum(envs.kernel.step_rows, ())]),
        "steps_per_second": runs,
        "of_copying": [a / b for a, b in zip(runs, copied, strict=True)],
    }


def memory(what: str, case: Case, count: int) -> dict[str, Any]:
    """Bytes that each environment of a batch adds: state, in all, at most while a step is made."""
    name, kwargs = case
    kept = gym.make_vec(name, num_envs=1, **kwargs)  # its tables, which all batches share
    tracemalloc.start()
    envs: Any = gym.make_vec(name, num_envs=count, **kwargs)
    infos = envs.reset()[1]
    held = tracemalloc.get_traced_memory()[0]
    peak = held
    rng = np.random.default_rng(0)
    for _ in range(envs.episode_steps):
        tracemalloc.reset_peak()
        infos = envs.step(drawn(rng, infos, count))[-1]
        peak = max(peak, tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    kept.close()
    state = sum(value.nbytes for value in vars(envs).values() if isinstance(value, np.ndarray))
    return {"what": what, "state": state / count, "held": held / count, "in_a_step": peak / count}


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--seconds", type=float, default=0.5, help="of each run")
    options.add_argument("--envs", type=int, nargs="*", default=SIZES)
    options.add_argument("--pivots", type=int, nargs="*", default=PIVOTS)
    asked = options.parse_args()
    seconds, repeats, grown_envs = asked.seconds, asked.repeats, 256
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = cases(folder)
        rows = [row for n in (0, *asked.envs) for row in speeds(chosen, n, seconds, repeats)]
        grown = [growth(n, grown_envs, folder, seconds, repeats) for n in asked.pivots]
        memories = [memory(what, case, 1024) for what, case in chosen.items() if case[1]]
    alone = {row["what"]: median(row["steps_per_second"]) for row in rows if not row["envs"]}
    sections = [
        "Random legal steps on one core, resets included, observations and masks written; steps a "
        f"second of processor time, median of {repeats} runs of {seconds:g} s, all in turns. "
        '`envs`: at once, by `gym.make_vec`; "single" by `gym.make`. `/ single`: over the single '
        "environment. `/ CartPole`: over gymnasium's `CartPole-v1` with as many envs in the same "
        "round, median and worst. `of copying`: the time that `np.copyto` takes for the bytes of "
        "the observation, over that of a step. 4 stages if not said otherwise; every pivot of the "
        "chains may be cut.",
        table(
            ["environment", "actions", "envs", "steps/s", "/ single", "/ CartPole", "worst",
             "observation, bytes an env", "of copying"],
            [
                [
                    row["what"],
                    row["actions"],
                    row["envs"] or "single",
                    f"{median(row['steps_per_second']):,.0f}",
                    f"{median(row['steps_per_second']) / alone[row['what']]:.1f}",
                    f"{median(row['over_cartpole']):.2f}",
                    f"{min(row['over_cartpole']):.2f}",
                    f"{row['observation_bytes']:,.0f}",
                    f"{100 * median(row['of_copying']):.0f} %",
                ]
                for row in sorted(rows, key=lambda row: list(chosen).index(row["what"]))
            ],
        ),
        f"Growth with the number of pivots, {grown_envs} envs, 4 stages on cluster C. `stages by`: "
        "where tables of stages would be too large, they are computed in every step.",
        table(
            ["pivots", "candidates", "stages by", "tables, MB", "making, s", "steps/s",
             "candidates/s", "of copying"],
            [
                [
                    f"{row['pivots']:,}",
                    f"{row['actions']:,}",
                    "table" if row["tabulated"] else "computing",
                    f"{row['table_bytes'] / 1e6:,.1f}",
                    f"{row['making_s']:.2f}",
                    f"{median(row['steps_per_second']):,.0f}",
                    f"{median(row['steps_per_second']) * row['actions']:,.0f}",
                    f"{100 * median(row['of_copying']):.0f} %",
                ]
                for row in grown
            ],
        ),
        "Memory that each environment of a batch of 1,024 takes, in bytes, tables left out: its "
        "state; with its masks and the bounds that gymnasium keeps of a batched observation space; "
        "at most while a step is made, results included:",
        table(
            ["environment", "state", "held", "in a step"],
            [
                [row["what"], *(f"{row[key]:,.0f}" for key in ("state", "held", "in_a_step"))]
                for row in memories
            ],
        ),
    ]  # fmt: skip
    data = {"repeats": repeats, "speeds": rows, "growth": grown, "memory": memories}
    publish("vector_cut", sections, data, asked.out)


if __name__ == "__main__":
    main()
