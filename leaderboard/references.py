"""Makes the list of tasks: their problems, the best costs known, and their proven bounds.

    python -m parenvs.leaderboard.references                      # solve all problems again
    python -m parenvs.leaderboard.references --check              # compare, write nothing
    python -m parenvs.leaderboard.references --check --instances vgg-19
    python -m parenvs.leaderboard.references --changed            # new problems, changed costs
    python -m parenvs.leaderboard.references --tasks hybrid       # the others stay as they are
    python -m parenvs.leaderboard.references --engine ray --jobs 8 [--address auto]

The list is written after every task, so that ``--changed`` goes on where a run was stopped. Proven
references are the same on every machine. Where a search ends at its time limit, the better of the
new reference's cost and the old one's is kept, and so is the better of their bounds. Where the cost
model itself has changed, which the cost of the trivial plan tells, or what a problem is, its
software for one, which its settings tell, the old reference is dropped. Where a cost is another,
the revision grows, and ``revisions.md`` lists the old and the new costs. References of hybrid plans
and orders are those of ``parenvs.datasets.references``, which commands of their own make.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from parenvs.agents.learning.ray_tasks import ENGINES, LOCAL, RAY, on_ray
from parenvs.core.leaderboard import SECONDS, Reference, TaskProblem, is_less, kind_of, kinds
from parenvs.errors import NO_PLAN, ParenvsError
from parenvs.files import locked, write_text
from parenvs.leaderboard.tasks import (
    Task,
    TaskList,
    older_file,
    read_tasks,
    tasks_file,
    unsolved,
)
from parenvs.markdown import table

COMMAND = "python -m parenvs.leaderboard.references"
_REVISIONS = """# Revisions of the tasks

`python -m parenvs.leaderboard.references` lists here which costs changed, in seconds: with the cost
model, or as better plans became known. Entries hold plans, judged anew by the costs of the day.
"""
VERSION = 1
"""Version of the list. When it grows, the old list stays beside it, for entries of then."""
Item = tuple[TaskProblem, float]
"""A problem without reference, and the time limit of each search in seconds."""
Found: TypeAlias = TaskProblem | str
"""The problem with its reference, or why no plan fits."""
Spread = Callable[[Callable[[Item], Found], Iterable[Item]], Iterable[Found]]
"""Calls a function for each item, and yields what it returns in their order."""


def solved(problem: TaskProblem, seconds: float = SECONDS) -> TaskProblem:
    """Return the problem with its reference and the cost of the trivial plan.

    Raises:
        InfeasibleError: no plan fits the memory.
    """
    return replace(
        problem,
        reference=problem.solved(seconds),
        trivial=problem.trivial_cost(),
        settings={**problem.settings, **problem.found()},
    )


def is_same_cost(one: float, other: float) -> bool:
    """Return whether two costs of one plan are equal but for rounding."""
    return not (is_less(one, other) or is_less(other, one))


def has_same_costs(problem: TaskProblem, trivial: float, known: TaskProblem) -> bool:
    """Return whether a problem of the list costs what it did: its trivial plan, by its settings."""
    # Floats are found with the reference, see ``TaskProblem.found``.
    given = {key: x for key, x in problem.settings.items() if not isinstance(x, float)}
    same = all(known.settings.get(key) == value for key, value in given.items())
    return same and is_same_cost(trivial, known.trivial)


def changes(old: TaskList, new: TaskList) -> list[tuple[str, ...]]:
    """Return task, problem, and costs of reference and trivial plan, old and new, that changed."""
    rows = []
    for name, task in new.tasks.items():
        known = old.tasks[name].problems if name in old.tasks else {}
        for key, problem in task.problems.items():
            if key in known:
                before = known[key]
                costs = (
                    before.reference.cost, problem.reference.cost, before.trivial, problem.trivial
                )  # fmt: skip
                if not all(is_same_cost(*pair) for pair in (costs[:2], costs[2:])):
                    rows.append((name, key, *(f"{cost:.6g}" for cost in costs)))
    return rows


def make_task(
    name: str,
    instances: Sequence[str] | None,
    old: TaskList,
    seed: int,
    seconds: float = SECONDS,
    only_changed: bool = False,
    spread: Spread = map,
) -> Task:
    """Solve the problems of a task again; of references without proof, keep the better.

    ``only_changed`` keeps the problems whose costs are still the same as they are.
    """
    known = old.tasks[name].problems if name in old.tasks else {}
    order, kept, due = [], {}, []
    for problem in unsolved(name, seed, instances):
        before = known.get(problem.name)
        same = before is not None and has_same_costs(problem, problem.trivial_cost(), before)
        order.append(problem.name)
        if before is not None and same:
            kept[problem.name] = before
        if not (only_changed and same):
            due.append((replace(problem), seconds))  # without what it has read for its cost
    by_name = dict(kept) if only_changed else {}
    for (problem, _), new in zip(due, spread(_solved, due), strict=True):
        if isinstance(new, str):
            print(f"{name} {problem.name}: left out, {new}", file=sys.stderr)
            continue
        # The same problem at the same costs: the better bound and the better plan stay.
        if problem.name in kept:
            new = replace(new, reference=better(new.reference, kept[problem.name].reference))
        by_name[new.name] = new
        best = new.reference
        print(
            f"{name} {new.name}: {best.cost:.6g}, {best.status} ({best.bound / best.cost:.4f})",
            file=sys.stderr,
        )
    solved_problems = {key: by_name[key] for key in order if key in by_name}
    return Task(name, **kind_of(name).fields(), problems=solved_problems)


def _solved(item: Item) -> Found:
    try:
        return solved(*item)
    except NO_PLAN as error:
        return str(error)


def better(new: Reference, old: Reference) -> Reference:
    """Return the better cost and the better bound of two references to one problem."""
    if new.proven or old.proven:
        return new if new.proven else old
    # Where a time limit ended the search, an equally good old reference stays.
    cheaper = new if is_less(new.cost, old.cost) else old
    tighter = new if is_less(old.bound, new.bound) else old
    return replace(cheaper, bound=tighter.bound, bounded_by=tighter.bounded_by)


def differences(solved_task: Task, known: Task, instances: Sequence[str] | None) -> list[str]:
    """Return the differences between a task solved again and the list in the file, in words."""
    known_problems = {
        key: problem
        for key, problem in known.problems.items()
        if instances is None or problem.instance in instances
    }
    unmatched = solved_task.problems.keys() ^ known_problems
    lines = [f"{known.name} {name}: in one list only" for name in unmatched]
    for name in solved_task.problems.keys() & known_problems.keys():
        new, old = solved_task.problems[name], known_problems[name]
        same = (new.instance, new.fingerprint, new.settings, new.reference.status) == (
            (old.instance, old.fingerprint, old.settings, old.reference.status)
        )
        pairs = (new.reference.cost, old.reference.cost), (new.trivial, old.trivial)
        if not same or not all(is_same_cost(a, b) for a, b in pairs):
            lines.append(f"{known.name} {name}: {new.to_json()} anew, {old.to_json()} in the file")
    return sorted(lines)


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=str(__doc__).splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file, write nothing")
    parser.add_argument("--tasks", nargs="*", choices=list(kinds()), default=list(kinds()))
    parser.add_argument("--instances", nargs="*", help="graphs and problems, with --check")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="limit of each search")
    parser.add_argument("--changed", action="store_true", help="only problems whose costs changed")
    parser.add_argument("--out", type=Path, default=tasks_file(), help="default: %(default)s")
    parser.add_argument("--engine", choices=ENGINES, default=LOCAL, help="default: local")
    parser.add_argument("--jobs", type=int, default=2, help="tasks of Ray (default: 2)")
    parser.add_argument("--address", help="of a cluster of Ray (default: this machine)")
    options = parser.parse_args(None if arguments is None else list(arguments))
    if options.instances is not None and not options.check:
        parser.error("tasks are made whole; --instances goes with --check")
    try:
        if options.check:
            return _check(options)
        with locked(options.out, beside=True):
            # Another process may have written it before this one had the lock.
            _renew(options)
    except ParenvsError as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        return 2
    return 0


def _check(options: argparse.Namespace) -> int:
    if not options.out.exists():
        raise ParenvsError(f"no file {options.out}")
    old = read_tasks(options.out)
    lines: list[str] = []
    for name in options.tasks:
        task = make_task(
            name, options.instances, old, old.seed, options.seconds, spread=_spread(options)
        )
        lines += differences(task, old.task(name), options.instances)
    for line in lines:
        print(f"{COMMAND}: {line}", file=sys.stderr)
    return 2 if lines else 0


def _spread(options: argparse.Namespace) -> Spread:
    if options.engine == RAY:
        return partial(on_ray, jobs=options.jobs, address=options.address, in_order=True)
    return map


def _renew(options: argparse.Namespace) -> None:
    """Solve the problems again and write the list after every task, and what changed in it."""
    is_old = options.out.exists()
    old = read_tasks(options.out) if is_old else TaskList(0, 0, {}, seeds={})
    revision, seeds = 0, dict(old.seeds)
    if old.version == VERSION:
        revision = old.revision
    else:
        if is_old:
            old.save(older_file(options.out, old.version))
        seeds[VERSION] = secrets.randbelow(2**31)  # nobody knows what will be drawn before
    tasks = {name: old.tasks[name] for name in kinds() if name in old.tasks}
    renewed = TaskList(VERSION, revision, tasks, seeds, old.lodged)
    for name in (name for name in kinds() if name in options.tasks):
        tasks[name] = make_task(
            name, None, old, seeds[VERSION], options.seconds, options.changed, _spread(options)
        )
        ordered = {key: tasks[key] for key in kinds() if key in tasks}
        is_new = ordered.keys() != old.tasks.keys()
        # A revision is a change that moves scores, or a new ranking.
        grown = is_old and (is_new or bool(changes(old, TaskList(0, 0, ordered))))
        renewed = TaskList(VERSION, revision + grown, ordered, seeds, old.lodged)
        renewed.save(options.out)
    if changed := changes(old, renewed):
        listed = options.out.with_name("revisions.md")
        text = listed.read_text(encoding="utf-8") if listed.exists() else _REVISIONS
        header = ("task", "problem", "reference", "now", "trivial plan", "now")
        more = f"\n## Revision {renewed.revision}\n\n" + table(header, changed, left=2) + "\n"
        write_text(listed, text.rstrip("\n") + "\n" + more)


if __name__ == "__main__":
    sys.exit(main())
