"""Random valid command lines: every command ends with status 0, or refuses in one line with 2.

    python benchmarks/fuzz_lines.py --count 2000
    python benchmarks/fuzz_lines.py --commands compare --seed 3

Options come from the commands' own tables and those of the tasks; an option without values here
ends the measurement. Lines run in this process, in a folder with a plan of each task, a trained
run, an entry of the leaderboard and an added problem. Status 1: a line gave a traceback, another
status, no line of words, or took more than a minute of the processor.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ["PARENVS_IOPDDL"] = "added"
from benchmarks.framework import Row, columns, main, measurement, progress
from commands import GPUS, command, walk
from intra_op_files import SMALL, written
from parenvs.agents.learning.options import ALGORITHMS
from parenvs.cli import app
from parenvs.cli.options import flags_of
from parenvs.core.registry import TASKS

MOST_SECONDS = 60
"""Of the processor: a line that takes more hangs."""
OUTCOMES = ("done", "refused", "traceback", "status", "words", "hang")
BAD = OUTCOMES[2:]
INSTANCES = {
    "partition": ("vgg-19", "t5-base", "partition-test/t5-003", "partition-validation/convnext-000",
                  "net.py:step --args arguments"),
    "pipeline": ("vgg-19", "t5-base", "plan-test/cnn-003", "generated-2/inside/any/17"),
    "hybrid": ("gpt-1.5b", "bert-large", "hybrid/7", "hybrid-test/gpt-000", "vgg-19",
               "hetero-8-test/spread-001"),
    "sharding": ("intra-op-test/mesh-003", "intra-op-test/mesh-004", "p"),
    "elastic": ("p3", "g4dn", "elastic-test/bulk-gpt-1.5b-000", "nodes.csv"),
}  # fmt: skip
SAMPLED = {"partition": "vgg-19", "pipeline": "vgg-19", "hybrid": "hybrid/7", "sharding": "p",
           "elastic": "nodes.csv"}  # fmt: skip
"""Task -> the instance of its plans in the folder."""
PLANS = tuple(f"{task}-{number}.json" for task in TASKS for number in (0, 1))
FILES: dict[str, Sequence[Sequence[str]]] = {
    "explain": ((*PLANS[:2], *PLANS[4:6], "vgg-19", "t5-base --task partition"),),
    "judge": (PLANS,),
    "diff": (tuple(f"{task}-0.json {task}-1.json" for task in TASKS),),
    "verify": (PLANS[:2],), "export": (PLANS[:6],), "iopddl add": (("p.json",),),
    "evaluate": (("run --set plan-outside",),),
    "leaderboard check": (("entries/data-parallel/greedy.json",),),
    "leaderboard table": (("--folder entries",),),
    "iopddl show": (("p", "p.json"),),
    "iopddl judge": (("sharding-0.json",), ("p", "p.json")), "iopddl export": (("vgg-19",),),
    "elastic compare": (("p3", "g4dn", "nodes.csv"),),
    "tune": (("", "bert-large --batch 64 --cluster A", "hybrid/7 --batch 64 --cluster 1x8:h100"),),
}  # fmt: skip
"""Command -> what its arguments are drawn from; those not named take an instance, or nothing."""
WEIGHTS = {"plan": 8, "compare": 2, "show": 4, "explain": 4, "judge": 3, "diff": 3, "export": 4}
LEFT_OUT = (
    "calibrate", "profile", "run", "doctor", "reshard", "elastic run", "leaderboard update",
    "leaderboard site", "leaderboard submit",
)  # fmt: skip
"""Commands that need a machine to themselves, or minutes."""
CLUSTERS = ("A", "B", "C", "1x4:v100", "2x2:a100", "1x8:h100")
FRAMEWORKS = ("megatron", "torchtitan", "deepspeed", "accelerate", "torch", "jax")
WHOLE = ("1", "2", "3", "4", "8")
VALUES: dict[str, Sequence[str]] = {
    "cluster": CLUSTERS, "seed": ("0", "1", "7"), "steps": ("1", "64", "300"),
    "plot": ("x.png", "x.svg", "x.pdf"), "map": ("map.png",), "baseline": ("tp 2 pp 2", "fsdp"),
    "variable": ("*", "*/kernel", "none"), "to": FRAMEWORKS, "for": FRAMEWORKS,
    "num-envs": ("1", "4"), "env": ("rows=ahead", "order=sequential", "paper=true"),
    "episodes": ("0", "3"), "set": ("plan-validation", "hybrid-validation"),
    "family": ("cnn", "gpt", "mesh"), "against": ("run",), "interval": ("60", "300"),
    "policy": ("fastest", "myopic", "look-ahead", "hysteresis"), "batch": ("8", "64", "512"),
    "variables": ("*", "0", "*/kernel"), "batch-inputs": ("1", "x*"), "frozen": ("*/bias", "9"),
    "model": ("gpt-1.5b", "bert-large"), "copies": ("1", "2.5"), "price": ("2.5",),
    "memory-limit": ("device", "8", "0.5"), "pin": ("0-3", "0-11:2", "4-7"), "seconds": ("1",),
    "tied": ("held", "once"), "from": ("scratch", "run"), "agent": tuple(ALGORITHMS),
    "recompute": ("none", "full", "selective", "none,full"), "zero": ("0", "3", "0,1"),
    "folder": ("entries",), "distribution": ("single",), "device": ("cpu",), "engine": ("local",),
    "answer": ("answer.json",), "task": tuple(TASKS), "instance": ("vgg-19", "hybrid/7", "p"),
    "module": ("vgg-19",), "journal": ("tune.jsonl",), "site": ("site.jsonl",), "tell": ("0.5",),
    "gib": ("20",), "plan": ("hybrid-0.json",), "failed": ("no network",), "time-limit": ("60",),
    "oom-pattern": ("memory",), "run": ("false",), "trace": ("t.json.gz",), "ranks": ("all",),
}  # fmt: skip
"""Option -> values; whole numbers and flags need none, nor do those of tasks that name theirs."""
OUTS = {"train": "trained", "iopddl export": "p2.json.gz", "leaderboard table": "table.md"}
NEVER = {"address", "args", "help-all", "runner", "trust", "resume", "until-optimal", "compile"}
"""Options that need a machine, what another line has made, a function, or a compiler's minutes."""


class _HangError(BaseException):
    """A line took too long; nothing but the measurement catches it."""


def drawn(name: str, known: Any, draw: random.Random) -> list[str]:
    """Return a random line of a command.

    Raises:
        KeyError: an option has no values here.
    """
    line = name.split()
    for words in FILES.get(name, ()):
        line += shlex.split(draw.choice(words))
    table = {x.opts[0].removeprefix("--"): x for x in known.params if x.param_type_name == "option"}
    typed = dict.fromkeys(x for x in table if table[x].required)
    every = {flag: x for task in TASKS.values() for flag, x in flags_of(task).items()}
    needs_problem = name in ("show", "plan", "compare", "train")
    if needs_problem:
        task = TASKS[draw.choice([*TASKS])]
        line += [*shlex.split(draw.choice(INSTANCES[task.name])), "--task", task.name]
        every = flags_of(task)
    flags = {x: y for x, y in every.items() if x in table and x not in NEVER}
    of_tasks = {flag for task in TASKS.values() for flag in flags_of(task)}
    already = {"task"} if needs_problem else set()
    already |= {word.removeprefix("--") for word in line}
    own = [x for x in table if x not in NEVER | of_tasks | already]
    agents: list[str] = []
    if name in ("plan", "compare"):
        agents = draw.sample(task.planners, draw.choice((1, 1, 2)) if name == "compare" else 1)
        line += [word for agent in agents for word in ("--agent", agent)]
        users = task.request_class().users
        used = {x for x in (*table, "seed") if x not in users or {*users[x]} & {*agents}}
        flags = {flag: x for flag, x in flags.items() if flag in used}
        own = [x for x in own if x != "agent" and x in used]
        typed |= dict.fromkeys(x for x in ("steps", "seconds") if x in (*flags, *own) and x in used)
    elif name == "train":
        typed["steps"] = None
    most = (0, 1, 1, 2, 3) if needs_problem else (0, 0, 0, 1)
    for size, pool in ((draw.choice((0, 1, 1, 2)), own), (draw.choice(most), [*flags])):
        typed |= dict.fromkeys(draw.sample(pool, min(size, len(pool))))
    return [*line, *(word for x in typed for word in _typed(name, x, table[x], flags.get(x), draw))]


def _typed(name: str, option: str, known: Any, flag: Any, draw: random.Random) -> list[str]:
    if known.is_flag:
        return [f"--{option}"]
    if option == "out":
        return ["--out", OUTS.get(name, "out.json")]
    values = VALUES.get(option, ()) if flag is None else flag.values or VALUES.get(option, ())
    if not values and (flag.kind if flag else known.type_descriptor.annotation) is int:
        values = WHOLE
    if not values:
        raise KeyError(f"{name} --{option} has no values in benchmarks/fuzz_lines.py")
    return [f"--{option}", draw.choice(values)]


def prepare() -> None:
    """Fill the current folder with what lines name."""
    Path("nodes.csv").write_text("seconds,nodes\n0,12\n300,8\n360,14\n900,14\n", "utf-8")
    Path("net.py").write_text(_NET, encoding="utf-8")
    written(Path(), SMALL)
    ended("iopddl add p.json")
    for task, instance in SAMPLED.items():
        for number, agent in enumerate(("exact", TASKS[task].planners[1])):
            line = f"plan {instance} --task {task} --agent {agent} --out {task}-{number}.json"
            ended(line + ("" if task in ("sharding", "elastic", "hybrid") else _CLUSTER[task]))
    ended("train pipeline --steps 64 --num-envs 4 --out run")
    ended("iopddl export vgg-19 --out answer.json")
    ended("leaderboard submit --task data-parallel --agent greedy --folder entries")


_CLUSTER = {"partition": " --cluster A", "pipeline": " --cluster A --stages 2 --devices-used 16"}
_NET = """
import jax, jax.numpy as jnp

def loss(weights, batch):
    for weight in weights:
        batch = jnp.tanh(batch @ weight)
    return (batch ** 2).mean()

def step(weights, batch):
    gradient = jax.grad(loss)(weights, batch)
    return [x - 0.1 * y for x, y in zip(weights, gradient)]

def arguments():
    return [jnp.zeros((64, 64))] * 4, jnp.zeros((16, 64))
"""


def ended(line: str) -> None:
    """Run a line.

    Raises:
        AssertionError: it does not end with status 0.
    """
    kind, words = outcome(shlex.split(line))
    assert kind == "done", f"{line}: {kind}: {words}"


def outcome(line: Sequence[str]) -> tuple[str, str]:
    """Run a command line: one of ``OUTCOMES``, and what it says on standard error."""
    said, told = io.StringIO(), io.StringIO()
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        with (
            contextlib.redirect_stdout(said), contextlib.redirect_stderr(told),
            patch.object(sys, "argv", ["parenvs", *line]),
            patch.object(app, "app", command(tuple(TASKS))),
            patch("parenvs.machine.gpus", lambda: GPUS),
        ):  # fmt: skip
            app.main()
    except SystemExit as end:
        words = told.getvalue()
        if "Traceback" in words:
            return "traceback", words
        if end.code not in (0, 2):
            return "status", f"{end.code}: {words}"
        if end.code == 2 and not words.strip():
            return "words", words
        return ("refused" if end.code else "done"), words
    except _HangError:
        return "hang", f"{told.getvalue()}\n{traceback.format_exc()}"
    except BaseException:  # what a user would see as a traceback
        return "traceback", traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return "status", "the command returned"


def _hang(*_: Any) -> None:
    raise _HangError


@measurement(
    title="Random valid command lines",
    wrong=lambda rows: any(row[kind] for row in rows for kind in BAD),
    about={"count": "lines", "seconds": "stop after so many seconds", "commands": "only these"},
)
def fuzz_lines(
    count: int = 2_000, seed: int = 0, seconds: float = 3_600.0, commands: tuple[str, ...] = ()
) -> list[Row]:
    signal.signal(signal.SIGPROF, _hang)
    known = {name: x for name, x in walk(command(tuple(TASKS))) if name not in LEFT_OUT}
    names = [*(commands or known)]
    draw, begin = random.Random(seed), time.monotonic()
    weights = [WEIGHTS.get(name, 1) for name in names]
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        prepare()
        for _ in range(count):
            if time.monotonic() - begin > seconds:
                break
            (name,) = draw.choices(names, weights)
            line, before = drawn(name, known[name], draw), time.process_time()
            kind, words = outcome(line)
            spent = time.process_time() - before
            row = rows.setdefault(
                name, {"command": name, **dict.fromkeys(OUTCOMES, 0), "seconds": 0.0}
            )
            row[kind] += 1
            row["seconds"] = max(row["seconds"], spent)
            if kind in BAD:
                progress(f"{kind} {spent:.1f} s: parenvs {shlex.join(line)}\n{words}")
    return [*rows.values()]


@fuzz_lines.page
def page(rows: list[Row]) -> list[str]:
    return [
        "Options of the commands' own tables with valid values, on small instances; planners that "
        "search have a second. Refused: status 2 with a line that says why.",
        columns(
            rows,
            [
                ("command", "{command}"), *((kind, f"{{{kind}}}") for kind in OUTCOMES),
                ("most s", "{seconds:.1f}"),
            ],
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    main(fuzz_lines)
