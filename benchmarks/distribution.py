"""One PPO, spread in several ways: learning curves, and where which way wins.

Trainings are lines of ``distribution.jsonl``; a second call goes on with those that are missing.
Needs the extra ``ray``.
"""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.common import parser, percent, progress, publish, table
from parenvs.agents.learning.distributed.session import session
from parenvs.agents.learning.distributed.update import Gloo, permutations, update
from parenvs.agents.learning.distributed.worker import Worker
from parenvs.agents.learning.train.config import Config
from parenvs.agents.learning.train.run import train
from parenvs.bench.curves import Curve
from parenvs.bench.problems import solve_problems
from parenvs.bench.runs import append, read

WORDS: dict[str, dict[str, Any]] = {
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


def trained(name: str, word: str, seed: int) -> dict[str, Any]:
    """Train once; returns the record, as JSON types."""
    config = replace(CONFIGS[name], seed=seed, distribution=WORDS[word])
    target, optimum = None, None
    if name == CUT:
        (problem,), _ = solve_problems(["pipeline-cut"], ["t5-3b"], ["C"])
        target, optimum = problem.target, problem.optimum
    begin, curve = time.perf_counter(), Curve(config.steps)
    result, model = train(config, target=target, callbacks=[curve])
    workers = getattr(model, "workers", None)
    return {
        "name": name,
        "word": word,
        "seed": seed,
        "budget": config.steps,
        "steps": result.steps,
        "target_steps": result.target_steps,
        "target_seconds": result.target_seconds,
        "gap": result.regret if optimum is None else optimum / result.value - 1,
        "seconds": result.seconds,
        "wall": time.perf_counter() - begin,
        "parts": None if workers is None else workers.seconds,
        "points": curve.points,
    }


def parts(name: str, envs: int) -> dict[str, Any]:
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
    rows = model.n_steps * envs
    return {
        "name": name,
        "envs": envs,
        "rows": rows,
        "environment": play.seconds["environment"],
        "inference": play.seconds["inference"],
        "learning": learning,
        "transfer": transfer,
        "bytes": len(sent),
        "weights": sum(p.numel() for p in model.policy.parameters()),
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


def predicted(one: dict[str, Any], processes: int) -> dict[str, float]:
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


def _rows_of_curves(records: Sequence[dict[str, Any]], name: str) -> list[list[Any]]:
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


def _rows_of_parts(measured: Sequence[dict[str, Any]]) -> list[list[Any]]:
    rows = []
    for one in measured:
        milli = [f"{1e3 * one[k]:,.0f}" for k in ("environment", "inference", "learning")]
        rows.append([
            one["name"], one["envs"], f"{one['rows']:,}", *milli, f"{1e3 * one['transfer']:,.1f}",
            f"{one['bytes'] / 1e6:.1f}", f"{one['weights']:,}",
            f"{1e3 * one['reduction'] * one['minibatches']:,.1f}",
        ])  # fmt: skip
    return rows


def _rows_of_winners(measured: Sequence[dict[str, Any]]) -> list[list[Any]]:
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


def _key(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["name"], record["word"], record["seed"], record["budget"]


def main() -> None:
    """Train, measure, print and write."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--words", nargs="+", choices=list(WORDS), default=list(WORDS))
    options.add_argument("--only", nargs="+", choices=("cut", "plan"), default=("cut", "plan"))
    options.add_argument("--render-only", action="store_true", help="train no more")
    chosen = options.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    path, measured = chosen.out / "distribution.jsonl", _measured(chosen.out)
    if not chosen.render_only:
        done = read(path, _key)
        with session(processes=4):
            for seed in range(chosen.seeds):
                for word in chosen.words:
                    for short in chosen.only:
                        name = {"cut": CUT, "plan": PLAN}[short]
                        if (name, word, seed, CONFIGS[name].steps) not in done:
                            append(path, record := trained(name, word, seed))
                            record.pop("points")
                            progress(f"{record}")
    records = [
        record
        for record in read(path, _key).values()
        if record["name"] in CONFIGS and record["budget"] == CONFIGS[record["name"]].steps
    ]
    heading = ("word", "seeds", "gap: median (range)", "optimal", "steps to it", "s to it",
               "processor s", "wall s")  # fmt: skip
    sections = [
        "Two actors, or two learners; `async` is RLlib's APPO with two actors. Processor seconds "
        "are those of all processes, without their start; wall seconds include it.",
        f"## {CUT}, {CONFIGS[CUT].steps:,} steps: gap of the best plan to the optimum",
        table(heading, _rows_of_curves(records, CUT)),
        f"## {PLAN}, {CONFIGS[PLAN].steps:,} steps: regret of the policy on plan-validation",
        table(heading, rows) if (rows := _rows_of_curves(records, PLAN)) else "No training yet.",
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
    publish("distribution", sections, {"parts": measured}, chosen.out)


def _measured(folder: Path) -> list[dict[str, Any]]:
    """The parts, measured anew or those of the last call."""
    path = folder / "distribution_parts.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    if not found:
        found = [parts(name, envs) for name in MEASURED for envs in ENVS]
    for one in found:
        if "reduction" not in one:
            one["reduction"] = reduction_seconds(one["weights"])
            progress(f"{one}")
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return list(found)


if __name__ == "__main__":
    main()
