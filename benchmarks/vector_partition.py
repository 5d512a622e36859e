"""Partition environments, single and batched: steps a second, growth, memory."""

from __future__ import annotations

import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, cast

import gymnasium as gym
import numpy as np
from common import parser, progress, publish, table

from parenvs.envs.partition_vector import OperatorPartitionVectorEnv

Case = tuple[str, dict[str, Any]]
BASELINE: Case = ("CartPole-v1", {})
CASES: list[Case] = [
    *(("OperatorPartition-v0", {"instance": name}) for name in ("t5-base", "t5-11b", "bert-48")),
    ("OperatorPartition-v0", {"instance": "t5-base", "linkage": False, "masked": True}),
    ("DataParallel-v0", {"instance": "t5-base"}),
    ("DataParallel-v0", {"instance": "bert-48"}),
]
SIZES = (1, 8, 64, 1024, 8192)
LAYERS = (16, 64, 256, 1024, 4096)
"""Of chains of dense layers, each of which has a class of its own."""
DRAWN = 100
"""Steps that are drawn before a batch is timed; a pass plays them all, from a reset on."""
CARTPOLE = "/ CartPole"


def legal(rng: np.random.Generator, info: dict[str, Any], count: int) -> np.ndarray:
    """(count,) uniform actions; the other one where the mask forbids it."""
    actions = rng.integers(0, 2, count)
    if "action_mask" not in info:
        return actions
    masks = info["action_mask"].reshape(count, -1)
    return np.where(masks[np.arange(count), actions] > 0, actions, 1 - actions)


def batch_pass(envs: gym.vector.VectorEnv[Any, Any, Any]) -> tuple[Callable[[], None], int]:
    """A function that plays a batch, and the steps that this makes."""
    rng, actions = np.random.default_rng(0), []
    _, info = envs.reset(seed=0)
    for _ in range(DRAWN):
        actions.append(legal(rng, info, envs.num_envs))
        info = envs.step(actions[-1])[-1]

    def play() -> None:
        envs.reset(seed=0)
        for one in actions:
            envs.step(one)

    return play, DRAWN * envs.num_envs


def single_pass(env: gym.Env[Any, Any]) -> tuple[Callable[[], None], int]:
    """A function that plays a single environment, and the steps that this makes."""
    rng, actions = np.random.default_rng(0), []
    _, info = env.reset(seed=0)
    for _ in range(10 * DRAWN):
        actions.append(int(legal(rng, info, 1)[0]))
        _, _, terminated, truncated, info = env.step(actions[-1])
        if terminated or truncated:
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


def copies_per_second(observation: dict[str, np.ndarray], seconds: float) -> float:
    """How many times a second ``np.copyto`` copies the bytes of an observation."""
    source = np.ones(sum(array.nbytes for array in observation.values()), dtype=np.uint8)
    target = np.empty_like(source)

    def play() -> None:
        for _ in range(DRAWN):
            np.copyto(target, source)

    return speed(play, DRAWN, seconds)


def speeds(count: int, seconds: float, repeats: int) -> list[dict[str, Any]]:
    """All cases and CartPole in turns, ``count`` at once; 0 for a single one by ``gym.make``."""
    cases = [BASELINE, *CASES]
    plays, sizes, copied = [], [], []
    for name, kwargs in cases:
        if count:
            envs = gym.make_vec(name, num_envs=count, **kwargs)
            observation = envs.reset(seed=0)[0]
            plays.append(batch_pass(envs))
        else:
            observation = gym.make(name, **kwargs).reset(seed=0)[0]
            plays.append(single_pass(gym.make(name, **kwargs)))
        parts = observation if isinstance(observation, dict) else {"state": observation}
        copied.append({key: np.asarray(value) for key, value in parts.items()})
        sizes.append(sum(array.nbytes for array in copied[-1].values()))
    runs = []
    for repeat in range(repeats):
        progress(f"{count or 'single'}: round {repeat + 1} of {repeats}")
        steps = [speed(*play, seconds) for play in plays]
        copies = [copies_per_second(one, seconds / 10) * max(count, 1) for one in copied]
        runs.append((steps, copies))
    return [
        {
            "id": name,
            "kwargs": kwargs,
            "envs": count,
            "observation_bytes": sizes[k],
            "steps_per_second": [steps[k] for steps, _ in runs],
            "over_cartpole": [steps[k] / steps[0] for steps, _ in runs],
            "of_copy_bandwidth": [steps[k] / copies[k] for steps, copies in runs],
        }
        for k, (name, kwargs) in enumerate(cases)
    ]


def chain(layers: int) -> str:
    """HLO text of dense layers, 4 wide, one after the other."""
    shape = "f32[4,4]{1,0}"
    lines = [f"  params__w{k:05d}__.1 = {shape} parameter({k})" for k in range(layers)]
    lines.append(f"  batch__x__.1 = {shape} parameter({layers})")
    last = "batch__x__.1"
    for k in range(layers):
        root = "ROOT " if k == layers - 1 else ""
        lines.append(
            f"  {root}dot.{k} = {shape} dot({last}, params__w{k:05d}__.1), "
            "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
        )
        last = f"dot.{k}"
    return "\n".join(["HloModule chain", "ENTRY main {", *lines, "}", ""])


def growth(layers: int, count: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Steps a second of a batch on a chain of layers."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chain.txt"
        path.write_text(chain(layers))
        begin = time.process_time()
        envs = gym.make_vec("OperatorPartition-v0", num_envs=count, instance=str(path))
        made = time.process_time() - begin
    play = batch_pass(envs)
    observation = envs.reset()[0]
    progress(f"{layers} layers")
    runs = [speed(*play, seconds) for _ in range(repeats)]
    copies = [copies_per_second(observation, seconds / 10) * count for _ in range(repeats)]
    answers = cast(OperatorPartitionVectorEnv, envs).answers
    return {
        "layers": layers,
        "classes": len(answers.space.classes),
        "dimensions": len(answers.space.dimensions),
        "tables": answers.decisions.table is not None,
        "making_s": made,
        "steps_per_second": runs,
        "of_copy_bandwidth": [a / b for a, b in zip(runs, copies, strict=True)],
    }


def memory(case: Case, count: int) -> dict[str, Any]:
    """Bytes that each environment of a batch adds: state, in all, at most while a step is made."""
    name, kwargs = case
    gym.make_vec(name, num_envs=1, **kwargs)  # tables, which all batches share
    held = []
    for size in (1, count):
        tracemalloc.start()
        envs = gym.make_vec(name, num_envs=size, **kwargs)
        envs.reset()
        held.append(tracemalloc.get_traced_memory()[0])
        if size == count:
            tracemalloc.reset_peak()
            envs.step(np.zeros(count, dtype=np.int64))
            peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    state = sum(value.nbytes for value in vars(envs).values() if isinstance(value, np.ndarray))
    return {
        "id": name,
        "kwargs": kwargs,
        "state_bytes": state / count,
        "bytes": (held[1] - held[0]) / (count - 1),
        "in_a_step_bytes": peak / count,
    }


def arguments_of(raw: dict[str, Any]) -> str:
    """Keyword arguments of an environment, in words."""
    return ", ".join(f"{key}={value}" for key, value in raw["kwargs"].items())


def main() -> None:
    """Measure, print and write."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--seconds", type=float, default=0.5, help="of each run")
    options.add_argument("--layers", type=int, nargs="*", default=LAYERS)
    chosen = options.parse_args()
    seconds, repeats = chosen.seconds, chosen.repeats
    rows = [row for count in (0, *SIZES) for row in speeds(count, seconds, repeats)]
    grown = [growth(layers, 1024, seconds, repeats) for layers in chosen.layers]
    memories = [memory(case, 1024) for case in CASES]
    alone = {
        (row["id"], arguments_of(row)): median(row["steps_per_second"])
        for row in rows
        if not row["envs"]
    }
    sections = [
        "Random legal steps on one core, resets included, observations and masks written; steps a "
        f"second of processor time, median of {repeats} runs of {seconds:g} s, all environments "
        "in turns. `envs`: at once, by `gym.make_vec`; \"single\" by `gym.make`. `/ single`: over "
        f"the single environment. `{CARTPOLE}`: over gymnasium's `CartPole-v1` with as many envs "
        "in the same round, median and worst. `of copying`: the time that `np.copyto` takes for "
        "the bytes of the observation, over that of a step.",
        table(
            ["environment", "arguments", "envs", "steps/s", "/ single", CARTPOLE, "worst",
             "observation, bytes an env", "of copying"],
            [
                [
                    row["id"],
                    arguments_of(row),
                    row["envs"] or "single",
                    f"{median(row['steps_per_second']):,.0f}",
                    f"{median(row['steps_per_second']) / alone[row['id'], arguments_of(row)]:.1f}",
                    f"{median(row['over_cartpole']):.2f}",
                    f"{min(row['over_cartpole']):.2f}",
                    f"{row['observation_bytes'] / max(row['envs'], 1):,.0f}",
                    f"{100 * median(row['of_copy_bandwidth']):.0f} %",
                ]
                for row in sorted(rows, key=lambda row: (row["id"], arguments_of(row)))
            ],
            left=2,
        ),
        "Growth with the number of classes: chains of dense layers, 1,024 envs. Where whole rows "
        "would take a table of more than 32 MiB, lists of changes take its place.",
        table(
            ["layers", "classes", "dimensions", "by", "making, s", "steps/s", "of copying"],
            [
                [
                    row["layers"],
                    row["classes"],
                    row["dimensions"],
                    "table" if row["tables"] else "lists",
                    f"{row['making_s']:.2f}",
                    f"{median(row['steps_per_second']):,.0f}",
                    f"{100 * median(row['of_copy_bandwidth']):.0f} %",
                ]
                for row in grown
            ],
        ),
        "Memory that each environment of a batch of 1,024 adds, in bytes: its state; with it the "
        "bounds that gymnasium keeps of a batched observation space; at most while a step is made, "
        "results included:",
        table(
            ["environment", "arguments", "state", "held", "in a step"],
            [
                [
                    row["id"],
                    arguments_of(row),
                    f"{row['state_bytes']:,.0f}",
                    f"{row['bytes']:,.0f}",
                    f"{row['in_a_step_bytes']:,.0f}",
                ]
                for row in memories
            ],
            left=2,
        ),
    ]  # fmt: skip
    data = {"repeats": repeats, "speeds": rows, "growth": grown, "memory": memories}
    publish("vector_partition", sections, data, chosen.out)


if __name__ == "__main__":
    main()
