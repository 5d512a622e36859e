"""Methods: scripts that plan problems which a seed generates.

The author of a method runs it. The author first adds the SHA-256 of the script to ``lodged`` in
``tasks.json``, for the next version of the list; that version's seed is published afterwards; the
entry then holds the plans. ``check`` judges plans and runs nobody's code.

A maintainer can run a script with a command of their own, which confines it, such as
``--runner "bwrap --ro-bind / / --unshare-all --die-with-parent python {script}"``. For each problem
the script reads one JSON object from standard input, ``{"task": ..., "seed": ..., "number": ...}``,
and writes one to standard output, ``{"plan": ..., "seconds": ...}``; ``plan`` is null where it
leaves the problem out. Python scripts call ``answer``.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from parenvs.core.leaderboard import TaskProblem, kind_of
from parenvs.core.plan import Plan
from parenvs.errors import NO_PLAN, ParenvsError, one_line
from parenvs.leaderboard.entry import Entry, parse_json
from parenvs.leaderboard.tasks import Task, solved_task

SECONDS = 180.0
"""Wall seconds that a script has for one problem."""
PLAIN = f"{shlex.quote(sys.executable)} {{script}}"
"""The runner of authors, for their own scripts: plain Python."""


def digest(script: Path) -> str:
    """Return the SHA-256 of a script, as ``tasks.json`` and entries have it.

    Raises:
        ParenvsError: there is no such file.
    """
    if not script.is_file():
        raise ParenvsError(f"{script}: no such file")
    return hashlib.sha256(script.read_bytes()).hexdigest()


def rerun(entry: Entry, seed: int, runner: str, script: Path | None) -> tuple[Entry, Task]:
    """Run a method on the problems of a seed.

    Args:
        entry: the method's entry.
        seed: of the problems.
        runner: command, in which ``{script}`` is replaced by the script's path; it has to confine
            the script.
        script: the method's script.

    Returns:
        The entry with plans and seconds of these problems, and the problems with references.

    Raises:
        ParenvsError: there is no runner or no script, the script is not the one that the entry
            names, or it fails on a problem.
    """
    if not runner or script is None:
        raise ParenvsError(
            f"{entry.entry}: a method's plans are for its list's seed; to run its script on seed "
            f"{seed}, give --runner 'COMMAND {{script}}', which has to confine it"
        )
    if digest(script) != entry.script:
        raise ParenvsError(f"{script}: not the script whose SHA-256 the entry has")
    task = solved_task(entry.task, seed)
    outcomes = {x.name: run(task.name, x, script, runner) for x in task.problems.values()}
    solved = {name: pair for name, pair in outcomes.items() if pair[0] is not None}
    plans = {name: plan for name, (plan, _) in solved.items()}
    seconds = {name: spent for name, (_, spent) in solved.items()}
    return replace(entry, plans=plans, seconds=seconds), task


def run(task: str, problem: TaskProblem, script: Path, runner: str) -> tuple[Any, float]:
    """Return a script's plan of one problem, None if it leaves it out, and its seconds.

    Raises:
        ParenvsError: the script cannot be run, fails, or writes anything else; one line.
    """
    settings = problem.settings
    words = {"task": task, "seed": settings["seed"], "number": settings["number"]}
    job = json.dumps(words).encode()
    if "{script}" not in runner:
        raise ParenvsError(f"--runner {runner!r} has no {{script}}")
    # No shell: the path of a script is one argument, whatever is in it.
    command = [part.replace("{script}", str(script.resolve())) for part in shlex.split(runner)]
    where = f"{script.name}, problem {problem.name}"
    try:
        done = subprocess.run(command, input=job, capture_output=True, timeout=SECONDS, check=True)
    except subprocess.TimeoutExpired:
        raise ParenvsError(f"{where}: no plan after {SECONDS:.0f} s") from None
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise ParenvsError(f"{where}: status {error.returncode}: {''.join(last)[:300]}") from None
    except OSError as error:
        raise ParenvsError(f"--runner: {one_line(error)}") from None
    answer = parse_json(done.stdout, where)
    seconds = answer.get("seconds") if isinstance(answer, dict) else None
    if not isinstance(seconds, (int, float)) or "plan" not in answer:
        raise ParenvsError(f"{where}: wrote no object with 'plan' and 'seconds'")
    return answer["plan"], float(seconds)


def answer(plan: Callable[[TaskProblem], Plan]) -> None:
    """Plan the problem that standard input names, and write the plan to standard output.

    What ``plan`` prints goes to standard error. A problem on which it raises ``InfeasibleError``
    is left out.
    """
    job = json.load(sys.stdin)
    draw = kind_of(job["task"]).draw
    assert draw is not None
    # Standard output carries the answer alone.
    with redirect_stdout(sys.stderr):
        problem = draw(job["seed"], job["number"])
        begin = time.perf_counter()
        try:
            content = plan(problem).to_json()
        except NO_PLAN:
            content = None
    seconds = float(f"{time.perf_counter() - begin:.3g}")
    json.dump({"plan": content, "seconds": seconds}, sys.stdout)
