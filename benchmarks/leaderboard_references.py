"""Makes the list of tasks: their problems, the best costs known, and their proven bounds.

    python benchmarks/leaderboard_references.py                      # solve all problems again
    python benchmarks/leaderboard_references.py --check              # compare, write nothing
    python benchmarks/leaderboard_references.py --check --instances vgg-19
    python benchmarks/leaderboard_references.py --changed            # new problems, changed costs
    python benchmarks/leaderboard_references.py --tasks hybrid       # the others stay as they are
    python benchmarks/leaderboard_references.py --engine ray --jobs 8 [--address auto]

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

from parenvs.agents.learning.ray_tasks import ENGINES, LOCAL, RAY, session
from parenvs.core.leaderboard import SECONDS, Reference, TaskProblem, is_less, kind_of, kinds
from parenvs.errors import NO_PLAN, ParenvsError
from parenvs.files import locked, write_text
from parenvs.leaderboard.tasks import Task, TaskList, older_file, read_tasks, tasks_file, unsolved
from parenvs.markdown import table

COMMAND = "python benchmarks/leaderboard_references.py"
_REVISIONS = """# Revisions of the tasks

`python benchmarks/leaderboard_references.py` lists here which costs changed, in seconds: with the
cost model, or as better plans became known. Entries hold plans, judged anew by the costs of the
day.
"""
TRIES = 3
"""How often Ray performs a task whose process dies, besides the first time."""
VERSION = 1
"""Version of the list. When it grows, the old list stays beside it, for entries of then."""
Item = tuple[TaskProblem, float]
"""A problem without reference, and the time limit of each search in seconds."""
Outcome: TypeAlias = TaskProblem | str
"""The problem with its reference, or why no plan fits."""
Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]
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


def is_same_cost(first: float, second: float) -> bool:
    """Return whether two costs of one plan are equal but for rounding."""
    return not (is_less(first, second) or is_less(second, first))


def has_same_costs(problem: TaskProblem, trivial: float, listed: TaskProblem) -> bool:
    """Return whether a problem of the list costs what it did: its trivial plan, by its settings."""
    # Floats are found with the reference, see ``TaskProblem.found``.
    fixed = {key: x for key, x in problem.settings.items() if not isinstance(x, float)}
    same_settings = all(listed.settings.get(key) == value for key, value in fixed.items())
    return same_settings and is_same_cost(trivial, listed.trivial)


def changes(old: TaskList, new: TaskList) -> list[tuple[str, ...]]:
    """Return task, problem, and costs of reference and trivial plan, old and new, that changed."""
    changed = []
    for name, task in new.tasks.items():
        problems = old.tasks[name].problems if name in old.tasks else {}
        for key, problem in task.problems.items():
            if key in problems:
                before = problems[key]
                references = before.reference.cost, problem.reference.cost
                trivials = before.trivial, problem.trivial
                if not (is_same_cost(*references) and is_same_cost(*trivials)):
                    changed.append((name, key, *(f"{cost:.6g}" for cost in references + trivials)))
    return changed


def make_task(
    name: str,
    instances: Sequence[str] | None,
    old: TaskList,
    seed: int,
    seconds: float = SECONDS,
    only_changed: bool = False,
    mapper: Mapper = map,
) -> Task:
    """Solve the problems of a task again; of references without proof, keep the better.

    ``only_changed`` keeps the problems whose costs are still the same as they are.
    """
    old_problems = old.tasks[name].problems if name in old.tasks else {}
    order, unchanged, to_solve = [], {}, []
    for problem in unsolved(name, seed, instances):
        listed = old_problems.get(problem.name)
        is_same = listed is not None and has_same_costs(problem, problem.trivial_cost(), listed)
        order.append(problem.name)
        if listed is not None and is_same:
            unchanged[problem.name] = listed
        if not (only_changed and is_same):
            to_solve.append((replace(problem), seconds))  # without what it has read for its cost
    by_name = dict(unchanged) if only_changed else {}
    for (problem, _), new in zip(to_solve, mapper(_outcome, to_solve), strict=True):
        if isinstance(new, str):
            print(f"{name} {problem.name}: left out, {new}", file=sys.stderr)
            continue
        # The same problem at the same costs: the better bound and the better plan stay.
        if problem.name in unchanged:
            new = replace(new, reference=better(new.reference, unchanged[problem.name].reference))
        by_name[new.name] = new
        best = new.reference
        print(
            f"{name} {new.name}: {best.cost:.6g}, {best.status} ({best.bound / best.cost:.4f})",
            file=sys.stderr,
        )
    solved_problems = {key: by_name[key] for key in order if key in by_name}
    return Task(name, **kind_of(name).fields(), problems=solved_problems)


def _outcome(item: Item) -> Outcome:
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
    listed = {
        key: problem
        for key, problem in known.problems.items()
        if instances is None or problem.instance in instances
    }
    unmatched = solved_task.problems.keys() ^ listed
    lines = [f"{known.name} {name}: in one list only" for name in unmatched]
    for name in solved_task.problems.keys() & listed.keys():
        new, old = solved_task.problems[name], listed[name]
        keys = ("instance", "fingerprint", "settings")
        is_same = all(getattr(new, key) == getattr(old, key) for key in keys)
        is_same = is_same and new.reference.status == old.reference.status
        pairs = (new.reference.cost, old.reference.cost), (new.trivial, old.trivial)
        if not is_same or not all(is_same_cost(a, b) for a, b in pairs):
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
    engine_options(parser)
    options = parser.parse_args(None if arguments is None else list(arguments))
    if options.instances is not None and not options.check:
        parser.error("tasks are made whole; --instances goes with --check")
    try:
        if options.check:
            return _compare_with_file(options)
        with locked(options.out, beside=True):
            # Another process may have written it before this one had the lock.
            _renew(options)
    except ParenvsError as error:
        print(f"{COMMAND}: {error}", file=sys.stderr)
        return 2
    return 0


def _compare_with_file(options: argparse.Namespace) -> int:
    """Print what differs from the file if problems are solved again; return the exit status."""
    if not options.out.exists():
        raise ParenvsError(f"no file {options.out}")
    old = read_tasks(options.out)
    lines: list[str] = []
    for name in options.tasks:
        task = make_task(
            name, options.instances, old, old.seed, options.seconds, mapper=mapper_of(options)
        )
        lines += differences(task, old.task(name), options.instances)
    for line in lines:
        print(f"{COMMAND}: {line}", file=sys.stderr)
    return 2 if lines else 0


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of where problems are solved."""
    parser.add_argument("--engine", choices=ENGINES, default=LOCAL, help="default: local")
    parser.add_argument("--jobs", type=_count, default=2, help="tasks of Ray (default: 2)")
    parser.add_argument("--address", help="of a cluster of Ray (default: this machine)")


def mapper_of(options: argparse.Namespace) -> Mapper:
    """Return how functions are called, by the options of ``engine_options``."""
    return partial(on_ray, options) if options.engine == RAY else map


def on_ray(
    options: argparse.Namespace, function: Callable[[Any], Any], items: Iterable[Any]
) -> Iterator[Any]:
    """Call a function for each item, as tasks of Ray, and yield its results in order.

    A task whose process dies is run again. An error of the function, or an interruption, ends all.
    """

    def task(item: Any) -> Any:
        import parenvs  # noqa: F401  # registers the environments in the task's process

        return function(item)

    with session(options.address, options.jobs) as ray:
        remote, waiting = ray.remote(num_cpus=1, max_retries=TRIES)(task), iter(items)
        pending: list[Any] = []
        try:
            while True:
                free = 2 * options.jobs - len(pending)
                pending += [remote.remote(item) for item in islice(waiting, free)]
                if not pending:
                    return
                yield ray.get(pending.pop(0))
        except ray.exceptions.RayTaskError as error:
            if not isinstance(error.cause, ParenvsError):
                raise
            raise ParenvsError(str(error.cause)) from None
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError):
            raise ParenvsError(
                f"a task's process died {TRIES + 1} times; the same command goes on from here, "
                "with fewer --jobs if memory ran out"
            ) from None
        finally:
            for reference in pending:
                ray.cancel(reference, force=True)


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
            name, None, old, seeds[VERSION], options.seconds, options.changed, mapper_of(options)
        )
        ordered = {key: tasks[key] for key in kinds() if key in tasks}
        is_new = ordered.keys() != old.tasks.keys()
        # A revision is a change that moves scores, or a new ranking.
        has_changed = is_old and (is_new or bool(changes(old, TaskList(0, 0, ordered))))
        renewed = TaskList(VERSION, revision + has_changed, ordered, seeds, old.lodged)
        renewed.save(options.out)
    if changed := changes(old, renewed):
        listed = options.out.with_name("revisions.md")
        text = listed.read_text(encoding="utf-8") if listed.exists() else _REVISIONS
        header = ("task", "problem", "reference", "now", "trivial plan", "now")
        more = f"\n## Revision {renewed.revision}\n\n" + table(header, changed, left=2) + "\n"
        write_text(listed, text.rstrip("\n") + "\n" + more)


if __name__ == "__main__":
    sys.exit(main())
