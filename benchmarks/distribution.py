"""One PPO, spread in several ways: learning curves, and where which way wins.

Needs the extra ``ray``.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.framework import (
    Case,
    Row,
    main,
    measurement,
    percent,
    table,
)
from parenvs.agents.learning.distributed.session import session
from parenvs.agents.learning.distributed.update import Gloo, permutations, update
from parenvs.agents.learning.distributed.worker import Worker
from parenvs.agents.learning.train.config import Config
from parenvs.agents.learning.train.run import train
from parenvs.bench.curves import Curve
from parenvs.bench.problems import solve_problems

WORDS: dict[str, Row] = {
    "single": {},
    "actors": {"word": "actors", "actors": 2},
    "learners": {"word": "learners", "learners": 2},
    "async": {"word": "async", "actors": 2, "learners": 1},
}
CUT, PLAN = "T5-3B on C", "PipelinePlan, drawn"
CONFIGS = {
    CUT: Config(env_kwargs={"instance": "t5-3b", "cluster": "C"}, steps=61_440),
    PLAN: Config("PipelinePlan-v0", {"draw": 2}, steps=8_192),
}
"""Trainings; each is done with every seed and every word."""
CHEAP, EXPENSIVE = "PipelineCut, T5-3B on C", "PipelinePlan, a new problem each episode"
MEASURED = {CHEAP: CONFIGS[CUT], EXPENSIVE: Config("PipelinePlan-v0", {"draw": 1})}
ENVS = (16, 64, 256)
PROCESSES = (2, 4, 16, 64)
"""Processes for which seconds are predicted."""
REDUCTIONS = 50
"""All-reduces of which the quickest counts, as others use the machine too."""


def trained(name: str, word: str, seed: int) -> Row:
    config = replace(CONFIGS[name], seed=seed, distribution=WORDS[word])
    target, optimum = None, None
    if name == CUT:
        (problem,), _ = solve_problems(["PipelineCut-v0"], ["t5-3b"], ["C"])
        target, optimum = problem.target, problem.optimum
    begin, curve = time.perf_counter(), Curve(config.steps)
    result, model = train(config, target=target, callbacks=[curve])
    workers = getattr(model, "workers", None)
    return {
        "steps": result.steps,
        "target_steps": result.target_steps,
        "target_seconds": result.target_seconds,
        "gap": result.regret if optimum is None else optimum / result.value - 1,
        "seconds": result.seconds,
        "wall": time.perf_counter() - begin,
        "parts": None if workers is None else workers.seconds,
        "points": curve.points,
    }


def parts(name: str, envs: int) -> Row:
    """Measure the parts of an update: processor seconds, but for the all-reduce, and bytes."""
    config = MEASURED[name]
    worker = Worker(config, 0, (envs,))
    worker.start()
    worker.play(0, None, True)
    play = worker.play(1, None, True)
    model = worker.model
    begin = time.process_time()
    model._current_progress_remaining = 1.0
    update(model, permutations(model.n_epochs, model.n_steps * envs))
    learning = time.process_time() - begin
    begin = time.process_time()
    sent = pickle.dumps(play.rows, protocol=5)
    copied = pickle.loads(sent)
    np.concatenate([copied["observations"][k].ravel() for k in copied["observations"]])
    transfer = time.process_time() - begin
    rows, weights = model.n_steps * envs, sum(p.numel() for p in model.policy.parameters())
    return {
        "rows": rows,
        "environment": play.seconds["environment"],
        "inference": play.seconds["inference"],
        "learning": learning,
        "transfer": transfer,
        "bytes": len(sent),
        "weights": weights,
        "reduction": reduction_seconds(weights),
        "minibatches": model.n_epochs * -(-rows // model.batch_size),
    }


def reduction_seconds(numbers: int) -> float:
    """Least wall seconds of an all-reduce of two threads by Gloo."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    found: list[float] = []

    def member(rank: int) -> None:
        own = store if rank == 0 else TCPStore("127.0.0.1", store.port, None, False)
        group, tensor = Gloo(own, rank, 2, 1, "127.0.0.1"), torch.zeros(numbers)
        for _ in range(REDUCTIONS):
            begin = time.perf_counter()
            group.add(tensor)
            if rank == 0:
                found.append(time.perf_counter() - begin)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return min(found)


def predicted(one: Row, processes: int) -> dict[str, float]:
    """Seconds of an update by the measured parts, a core for each process.

    The one learner of ``actors`` takes the rows of all actors one after the other. Learners send
    each other 2 (n - 1) / n of the weights, in 2 (n - 1) messages, of which two were measured.
    """
    playing = one["environment"] + one["inference"]
    reduce = one["reduction"] * (processes - 1) * one["minibatches"]
    return {
        "single": playing + one["learning"],
        "actors": playing / processes + one["transfer"] + one["learning"],
        "learners": (playing + one["learning"]) / processes + reduce,
    }


def _rows_of_curves(records: Sequence[Row], name: str) -> list[list[Any]]:
    rows = []
    for word in WORDS:
        mine = [r for r in records if (r["name"], r["word"]) == (name, word)]
        if not mine:
            continue
        gaps, hits = sorted(r["gap"] for r in mine), [r for r in mine if r["target_steps"]]
        steps = sorted(r["target_steps"] for r in hits)
        seconds = sorted(r["target_seconds"] for r in hits)
        rows.append([
            word, len(mine), f"{percent(median(gaps))} ({percent(gaps[0])} to {percent(gaps[-1])})",
            len(hits) if name == CUT else "",
            f"{median(steps):,.0f} ({steps[0]:,} to {steps[-1]:,})" if hits else "",
            f"{median(seconds):.1f}" if hits else "",
            f"{median(r['seconds'] for r in mine):.1f}", f"{median(r['wall'] for r in mine):.0f}",
        ])  # fmt: skip
    return rows


def _rows_of_parts(measured: Sequence[Row]) -> list[list[Any]]:
    rows = []
    for one in measured:
        milli = [f"{1e3 * one[k]:,.0f}" for k in ("environment", "inference", "learning")]
        rows.append([
            one["name"], one["envs"], f"{one['rows']:,}", *milli, f"{1e3 * one['transfer']:,.1f}",
            f"{one['bytes'] / 1e6:.1f}", f"{one['weights']:,}",
            f"{1e3 * one['reduction'] * one['minibatches']:,.1f}",
        ])  # fmt: skip
    return rows


def _rows_of_winners(measured: Sequence[Row]) -> list[list[Any]]:
    rows = []
    for one in measured:
        cells = []
        for processes in PROCESSES:
            seconds = predicted(one, processes)
            ratio = {word: seconds["single"] / seconds[word] for word in ("actors", "learners")}
            best = max(ratio, key=lambda word: ratio[word])
            best = best if ratio[best] > 1 else "single"
            cells.append(f"{ratio['actors']:.1f} / {ratio['learners']:.1f} {best}")
        rows.append([one["name"], one["envs"], *cells])
    return rows


@measurement(
    key=lambda row: tuple(row.get(x) for x in ("name", "word", "seed", "budget", "envs")),
    among={"words": WORDS, "only": ("cut", "plan", "parts")},
)
def distribution(
    seeds: int = 5,
    words: tuple[str, ...] = tuple(WORDS),
    only: tuple[str, ...] = ("cut", "plan", "parts"),
) -> Iterator[Case]:
    torch.set_num_threads(1)
    with session(processes=4):
        for seed in range(seeds):
            for word in words:
                for short, name in (("cut", CUT), ("plan", PLAN)):
                    key = {"name": name, "word": word, "seed": seed, "budget": CONFIGS[name].steps}
                    if short in only:
                        yield key, partial(trained, name, word, seed)
    for name in MEASURED if "parts" in only else ():
        for envs in ENVS:
            yield {"name": name, "envs": envs}, partial(parts, name, envs)


@distribution.page
def page(rows: list[Row]) -> list[str]:
    measured = [row for row in rows if row["name"] in MEASURED]
    records = [
        row
        for row in rows
        if row["name"] in CONFIGS and row["budget"] == CONFIGS[row["name"]].steps
    ]
    heading = ("word", "seeds", "gap: median (range)", "optimal", "steps to it", "s to it",
               "processor s", "wall s")  # fmt: skip
    return [
        "Two actors, or two learners; `async` is RLlib's APPO with two actors. Processor seconds "
        "are those of all processes, without their start; wall seconds include it.",
        f"## {CUT}, {CONFIGS[CUT].steps:,} steps: gap of the best plan to the optimum",
        table(heading, _rows_of_curves(records, CUT)),
        f"## {PLAN}, {CONFIGS[PLAN].steps:,} steps: regret of the policy on plan-validation",
        table(heading, lines) if (lines := _rows_of_curves(records, PLAN)) else "No training yet.",
        "## Parts of an update, ms",
        "Environment, inference, learning and transfer (rows pickled, read and joined) in "
        "processor time of one process, the all-reduces of all minibatches between two threads by "
        f"the clock, the quickest of {REDUCTIONS}.",
        table(("environment", "envs", "rows", "environment", "inference", "learning", "transfer",
               "MB sent", "weights", "all-reduce"), _rows_of_parts(measured), left=1),
        "## Predicted: how many times as fast as `single`, `actors` / `learners`, and who wins",
        "By these parts, with a core for each process: actors share environment and inference, "
        "learners everything but the all-reduces, whose messages grow with their number. Two "
        "cores cannot show it: they run two processes at once, share caches and memory, and "
        "there is no network between them.",
        table(("environment", "envs", *(f"{n} processes" for n in PROCESSES)),
              _rows_of_winners(measured), left=1),
    ]  # fmt: skip


if __name__ == "__main__":
    main(distribution)
