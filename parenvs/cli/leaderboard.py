"""The commands ``parenvs leaderboard``: submit, check, table, site and update."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection, Iterable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parenvs.cli import values
from parenvs.core.registry import TASKS
from parenvs.errors import ParenvsError
from parenvs.view.commands import Commands, completed
from parenvs.view.terminal import Json, Seed, check_range, out, say, say_json, say_progress

if TYPE_CHECKING:
    from parenvs.leaderboard.check import CheckedEntry


def _tasks(_: Any) -> list[str]:
    """Names of the leaderboard's tasks, and of the tasks of its plans."""
    file = Path(str(resources.files("parenvs.leaderboard"))) / "tasks.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    return [*TASKS, *(task["name"] for task in content["tasks"])]


_names = completed(_tasks)
Files = Annotated[list[Path], typer.Argument(help="Entries.", show_default=False)]
Folder = Annotated[
    Path, typer.Option("--folder", help="Folder of the entries, TASK/ENTRY.json in it.")
]
_SUBMISSIONS, _SCRIPTS = Path("leaderboard/submissions"), Path("leaderboard/scripts")
Drawing = Annotated[
    int | None,
    typer.Option(
        "--seed",
        help="Seed of the problems and courses that the checker draws (default: that of the "
        "version of the list that an entry is for).",
        show_default=False,
    ),
]

Unsafe = Annotated[
    bool,
    typer.Option(
        "--unsafe-no-isolation",
        help="Run strangers' code where this system cannot isolate it, too: as yourself.",
    ),
]


def add_leaderboard(app: typer.Typer) -> None:
    """Add the commands of the leaderboard."""
    board = Commands(help="Enter plans, check entries, rank them.")
    for command in (submit, check, table, site, update):
        board.command()(command)
    app.add_typer(board, name="leaderboard")


def submit(
    task: Annotated[
        list[str] | None,
        typer.Option(
            help="Task: of the leaderboard or of its plans; may be repeated (default: all).",
            autocompletion=_names,
        ),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            help="Agent; may be repeated (default: all that need no training first).",
            autocompletion=values.agents,
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="Folder of parenvs train, in place of --agent: its best actions."),
    ] = None,
    folder: Folder = _SUBMISSIONS,
    entry: Annotated[
        str | None, typer.Option(help="Its name (default: the agent's, or that of the folder).")
    ] = None,
    author: Annotated[list[str] | None, typer.Option(help="Who made it; may be repeated.")] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Hardware that made the plans (default: this processor).")
    ] = None,
    seed: Seed = 0,
    steps: Annotated[
        int, typer.Option(help="Environment steps a problem of agents that draw or learn.")
    ] = 60_000,
) -> None:
    """Plan every problem of a task with an agent, or with a trained one, and write the entry."""
    from parenvs.files import locked
    from parenvs.leaderboard.baselines import agents, planner, ready
    from parenvs.leaderboard.submit import agent_submission, run_submission
    from parenvs.leaderboard.tasks import tasks

    check_range("--seed", seed, 0)
    check_range("--steps", steps, 1)
    known = tasks()
    if run is not None:
        if agent or task is None:
            raise ParenvsError("--run takes a --task, and no --agent")
        for name in dict.fromkeys(one.name for word in task for one in known.of_word(word)):
            with locked(folder / name):
                made = run_submission(
                    name,
                    run,
                    entry=entry,
                    authors=author or ("parenvs",),
                    hardware=hardware,
                    say=say_progress,
                )
                made.save(folder / name / f"{made.entry}.json")
            say(f"entry written to {folder / name / made.entry}.json")
        return
    chosen = dict.fromkeys(x for word in task or known.tasks for x in known.of_word(word))
    if entry is not None and len(agent or ()) != 1:
        raise ParenvsError("--entry names the entry of one agent; give --agent once")
    pairs = [(task_, name) for task_ in chosen for name in dict.fromkeys(agent or ready(task_))]
    for task_, name in pairs:
        if name not in agents(task_) and not name.endswith(".npz"):
            planner(task_, name)  # raises, and says which there are
    for task_, name in pairs:
        target = folder / task_.name
        with locked(target):
            submission = agent_submission(
                task_.name,
                name,
                entry=entry,
                authors=author or ("parenvs",),
                seed=seed,
                steps=steps,
                hardware=hardware,
                say=say_progress,
            )
            path = target / f"{submission.entry}.json"
            submission.save(path)
        say(f"entry written to {path}")


def check(
    files: Files,
    seed: Drawing = None,
    unsafe: Unsafe = False,
    as_json: Json = False,
) -> None:
    """Judge entries anew and give every reason for refusing one. Status 2 if one is refused.

    Networks, tables and methods run in a process of their own, isolated and with limits. What kept
    them is printed. Where this system cannot isolate them, they are not run.
    """
    from parenvs.cli import tables

    check_range("--seed", seed or 0, 0)
    begin = time.perf_counter()
    entries, refused = _checked(files, seed=seed, unsafe=unsafe)
    if as_json:
        say_json(_standings(entries))
    else:
        out.print(tables.standings(entries))
        if len(entries) == 1:
            out.print(tables.verdicts(entries[0]))
    for path, reasons in refused.items():
        for reason in reasons:
            say_progress(f"{path}: {reason}")
    for checked in entries:
        if (isolation := checked.isolation) is not None:
            memory = f"; memory {isolation.memory}" if isolation.memory else ""
            say_progress(f"{checked.entry.entry}: isolation: {isolation.words}{memory}")
        for verdict in checked.verdicts:
            if verdict.note:
                say_progress(f"{checked.entry.entry}: {verdict.note}")
            if verdict.improves:
                remedy = "parenvs leaderboard update takes it over"
                is_drawn = checked.entry.content == "script"
                say_progress(
                    f"{checked.entry.entry}: {verdict.problem.name}: cost {verdict.cost:.9g} is "
                    f"better than the reference {verdict.problem.reference.cost:.9g}, which is not "
                    f"proven{'' if is_drawn else f'; {remedy}'}"
                )
    say_progress(f"{len(files)} judged in {time.perf_counter() - begin:.1f} s")
    _end(_summary(files, refused))


def table(
    folder: Folder = _SUBMISSIONS,
    path: Annotated[
        Path | None, typer.Option("--out", help="Write the table to this .md file.")
    ] = None,
    short: Annotated[bool, typer.Option("--summary", help="A line for each task.")] = False,
    added: Annotated[
        bool, typer.Option("--added", help="The problems whose files you added, and no others.")
    ] = False,
    methods: Annotated[
        bool, typer.Option("--methods", help=f"Methods on drawn problems, of {_SCRIPTS}.")
    ] = False,
    seed: Drawing = None,
    unsafe: Unsafe = False,
    as_json: Json = False,
) -> None:
    """Rank a folder's entries, all judged anew, as Markdown. Status 2 if one is refused."""
    from parenvs.leaderboard.results import added_page, methods_page, page, summary

    check_range("--seed", seed or 0, 0)
    if methods and folder == _SUBMISSIONS:
        folder = _SCRIPTS
    entries, refused = accepted(_of_folder(folder), folder, seed, unsafe)
    if as_json:
        text = json.dumps(_standings(entries)) + "\n"
    elif methods:
        text = methods_page(entries, seed)
    else:
        text = (added_page if added else summary if short else page)(entries)
    if path is None:
        sys.stdout.write(text)
    else:
        from parenvs.files import write_text

        write_text(path, text)
        say(f"table written to {path}")
    _end(refused)


def site(
    path: Annotated[
        Path, typer.Option("--out", help="Write the site to this folder, replaced as a whole.")
    ],
    folder: Folder = _SUBMISSIONS,
    methods: Annotated[
        Path | None,
        typer.Option("--scripts", help="Folder of methods, to be shown with the entries."),
    ] = None,
    docs: Annotated[
        str, typer.Option(help="Address of the documentation, which pages then link to.")
    ] = "",
    seed: Drawing = None,
    unsafe: Unsafe = False,
) -> None:
    """Write the leaderboard as static pages, every plan drawn, all judged anew."""
    from parenvs.leaderboard.site import write_site

    check_range("--seed", seed or 0, 0)
    entries, refused = accepted(_of_folder(folder), folder, seed, unsafe)
    if methods is not None:
        more, words = accepted(_of_folder(methods), methods, seed, unsafe)
        entries, refused = [*entries, *more], "; ".join(filter(None, (refused, words)))
    files = write_site(path, entries, docs)
    total = sum(len(text.encode()) for text in files.values())
    say(f"site written to {path}: {len(files)} files, {total / 1e6:.1f} MB; open index.html")
    _end(refused)


def update(files: Files, unsafe: Unsafe = False) -> None:
    """Take over plans that are better than a reference without proof, as a new revision."""
    from parenvs.files import locked
    from parenvs.leaderboard.check import improvements
    from parenvs.leaderboard.tasks import tasks, tasks_file

    with locked(tasks_file(), beside=True):  # what is read is what is replaced
        entries, refused = accepted(files, unsafe=unsafe)
        better, known = improvements(entries), tasks()
        if better:
            known.improved(better).save()
        for task, references in better.items():
            for name, new in references.items():
                old = known.task(task).problems[name].reference
                gain = f"{old.cost:.9g} ({old.method}) -> {new.cost:.9g} ({new.method})"
                say(f"{task} {name}: {gain}")
        if better:
            say(f"references written to {tasks_file()}")
        else:
            say("no reference is improved; nothing written")
    _end(refused)


def _checked(
    files: Iterable[Path],
    folder: Path | None = None,
    seed: int | None = None,
    unsafe: bool = False,
) -> tuple[list[CheckedEntry], dict[Path, tuple[str, ...]]]:
    """Judge entries: all that could be judged, and the reasons for refusing a file.

    An entry that breaks a rule is in both; a file that is no entry, or claims that of another
    file, is refused only. So is one under ``folder`` that is not where its fields say, and one on
    which the judge itself fails: no file stops the others.
    """
    from parenvs.leaderboard.check import check
    from parenvs.leaderboard.entry import displaced, home, load_entry
    from parenvs.leaderboard.reading import EntryError, cleaned
    from parenvs.leaderboard.sandbox.isolation import IsolationError

    loaded: dict[Path, Any] = {}
    refused: dict[Path, tuple[str, ...]] = {}
    for path in files:
        try:
            entry = load_entry(path)
        except EntryError as error:
            refused[path] = error.reasons
            continue
        if folder is not None and path != folder / home(entry):
            reason = f"field 'entry' is {entry.entry!r}; call the file {home(entry).as_posix()}"
            refused[path] = (reason,)
            continue
        loaded[path] = entry
    for path, other in displaced(loaded).items():
        entry = loaded.pop(path)
        reason = f"field 'entry': {entry.entry!r} of task {entry.task!r} is in {other} already"
        refused[path] = (reason,)
    entries = []
    for path, entry in loaded.items():
        try:
            checked = check(entry, seed, unsafe)
        except IsolationError as error:
            refused[path] = (str(error),)
            continue
        except Exception as error:
            words = cleaned(f"{type(error).__name__}: {error}")
            refused[path] = (f"the judge failed ({words}); please open an issue with this file",)
            continue
        entries.append(checked)
        if checked.reasons:
            refused[path] = checked.reasons
    return entries, refused


def accepted(
    files: list[Path],
    folder: Path | None = None,
    seed: int | None = None,
    unsafe: bool = False,
) -> tuple[list[CheckedEntry], str]:
    """Judge entries, and tell of each that is refused.

    A method that fails on some problems stays in the ranking, as it is judged on all of them;
    those problems score as the trivial plan, and the page names the fault.

    Returns:
        The accepted ones, and words on the refused ones for ``_end``.

    Raises:
        ParenvsError: none is accepted.
    """
    entries, refused = _checked(files, folder, seed, unsafe)
    for path, reasons in refused.items():
        say_progress(f"{path}: {reasons[0]}; parenvs leaderboard check gives all reasons")
    words = _summary(files, refused)
    accepted = [
        checked for checked in entries
        if not checked.reasons or checked.entry.content == "script"
    ]  # fmt: skip
    if not accepted:
        raise ParenvsError(words)
    return accepted, words


def _summary(files: list[Path], refused: Collection[Path]) -> str:
    """Words on how many files are refused, and which; empty if none is."""
    names = ", ".join(map(str, refused))
    return f"{len(refused)} of {len(files)} refused: {names}" if names else ""


def _end(refused: str) -> None:
    """End with status 2 if there are words on refused entries.

    Raises:
        ParenvsError: there are.
    """
    if refused:
        raise ParenvsError(refused)


def _of_folder(folder: Path) -> list[Path]:
    """The files of a folder that are called as entries are.

    Raises:
        ParenvsError: no entry is there.
    """
    from parenvs.leaderboard.entry import entry_files

    paths = entry_files(folder)
    if not paths:
        raise ParenvsError(
            f"{folder}: no entry TASK/ENTRY.json there; give --folder, or run in a checkout"
        )
    return paths


def _standings(entries: list[CheckedEntry]) -> dict[str, Any]:
    """All that a page shows: the list of tasks and the standings of each; older lists below it."""
    from parenvs.leaderboard.check import by_version, ranking

    first, *older = [
        {
            "version": known.version,
            "revision": known.revision,
            "tasks": [
                {**task.to_json(), "standings": [s.to_json() for s in ranking(task, mine)]}
                for task in known.tasks.values()
            ],
        }
        for known, mine in by_version(entries)
    ]
    return {**first, "older": older}
