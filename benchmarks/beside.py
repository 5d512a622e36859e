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
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

TURN = 0.12
"""Processor seconds of one measurement."""
ENVIRONMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "PipelineCut t5-3b": ("PipelineCut-v0", {"instance": "t5-3b", "cluster": "C"}),
    "PipelineCut vgg-19": ("PipelineCut-v0", {"instance": "vgg-19", "cluster": "C"}),
    "PipelinePlan t5-3b": ("PipelinePlan-v1", {"instance": "t5-3b", "cluster": "C"}),
    "PipelinePlan plan-s16-test": ("PipelinePlan-v1", {"instance": "plan-s16-test"}),
    "OperatorPartition t5-base": ("OperatorPartition-v0", {"instance": "t5-base"}),
    "DataParallel t5-base": ("DataParallel-v0", {"instance": "t5-base"}),
}
BATCHES = (8, 64, 1024)
PIPELINES = (
    "exact",
    "search",
    "learned",
)
PARTITIONS = ("exact", "greedy")
OLD = {"pipeline": "pipeline-cut", "partition": "operator-partition"}


def play(env_id: str, kwargs: dict[str, Any], count: int) -> Callable[[], int]:
    """Random legal actions in one environment (0) or ``count`` at once; gives the steps."""
    from parenvs.bench.play import batch_play, make, single_play

    env = make((env_id, kwargs), count)
    run, steps = batch_play(env) if count else single_play(env.unwrapped)

    def played() -> int:
        run()
        return steps

    return played


def planner(agent: str, task: str) -> Callable[[], int]:
    """One plan of T5-3B on cluster C, or of its variables on one server."""
    import parenvs

    problem: Any = None
    for name in (task, OLD[task]):  # names of tasks may differ between the two checkouts
        with suppress(parenvs.ParenvsError):
            problem = problem or parenvs.problem("t5-3b", "C" if task == "pipeline" else None, name)

    def plan() -> int:
        parenvs.solve(problem, agent)
        return 1

    return plan


def cases() -> dict[str, Callable[[], Callable[[], int]]]:
    """Name of a case -> what prepares it."""
    known: dict[str, Callable[[], Callable[[], int]]] = {}
    for name, (env_id, kwargs) in ENVIRONMENTS.items():
        for count in (0, *BATCHES):
            case = f"{name}, {count or 'single'}"
            known[case] = lambda e=env_id, k=kwargs, n=count: play(e, k, n)
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
