"""The commands ``parenvs leaderboard``: submit, check, table, site and update."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parenvs.cli import options
from parenvs.core.registry import TASKS
from parenvs.errors import ParenvsError
from parenvs.view.commands import completed
from parenvs.view.terminal import Json, Seed, check_range, out, say, say_json, say_progress

if TYPE_CHECKING:
    from parenvs.leaderboard.check import CheckedEntry
    from parenvs.leaderboard.entry import Entry


def _tasks(_: Any) -> list[str]:
    file = Path(str(resources.files("parenvs.leaderboard"))) / "tasks.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    return [*TASKS, *(task["name"] for task in content["tasks"])]


_names = completed(_tasks)
Files = Annotated[list[Path], typer.Argument(help="Entries.", show_default=False)]
Folder = Annotated[
    Path, typer.Option("--folder", help="Folder of the entries, TASK/ENTRY.json in it.")
]
_SUBMISSIONS = Path("leaderboard/submissions")


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
            autocompletion=options.agents,
        ),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="Run folder of parenvs train, in place of --agent: its best actions."),
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(help="Your script, in place of --agent, for tasks of generated problems."),
    ] = None,
    trained_on: Annotated[
        list[str] | None, typer.Option(help="What the --script was trained on; may be repeated.")
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
    """Plan every problem of a task, and write the entry.

    The planner is one of the agents, the best actions of a trained run, or a script of your own.
    """
    from parenvs.leaderboard import submit as making
    from parenvs.leaderboard.tasks import tasks

    check_range("--seed", seed, 0)
    check_range("--steps", steps, 1)
    known = tasks()
    chosen = dict.fromkeys(x for word in task or known.tasks for x in known.matching(word))
    common: dict[str, Any] = {
        "entry": entry,
        "authors": author or ("parenvs",),
        "hardware": hardware,
        "say": say_progress,
    }
    if run is not None or script is not None:
        if agent or task is None or (run and script):
            option = "--script" if run is None else "--run"
            raise ParenvsError(f"{option} takes a --task, and no --agent or other planner")
        if run is not None:
            make = partial(making.run_submission, run=run, **common)
        elif script is not None:
            given = {"trained_on": trained_on or (), **common}
            make = partial(making.script_submission, script=script, **given)
        for board in chosen:
            _write(folder, board.name, make)
        return
    if entry is not None and len(agent or ()) != 1:
        raise ParenvsError("--entry names the entry of one agent; give --agent once")
    pairs = [(board, x) for board in chosen for x in dict.fromkeys(agent or making.ready(board))]
    # All names are checked before the first plan is searched.
    for board, name in pairs:
        if not name.endswith(".npz"):
            making.check_agent(board, name)
    for board, name in pairs:
        make = partial(making.agent_submission, agent=name, seed=seed, steps=steps, **common)
        _write(folder, board.name, make)


def _write(folder: Path, task: str, make: Callable[[str], Entry]) -> None:
    from parenvs.files import locked

    # Locked before plans are searched, so that no work is done for an entry that is refused.
    with locked(folder / task):
        entry = make(task)
        entry.save(folder / entry.file)
    say(f"entry written to {folder / entry.file}")


def check(
    files: Files,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Seed of a policy's courses and a --runner's problems (default: the version's).",
            show_default=False,
        ),
    ] = None,
    runner: Annotated[
        str,
        typer.Option(
            help="Run a method's script, ENTRY.py, by a command that confines it: "
            "'bwrap ... python {script}'. Without it, its plans are judged and nothing runs."
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Judge entries anew and give every reason for refusing one. Status 2 if one is refused."""
    from parenvs.cli import tables
    from parenvs.leaderboard.ranking import standings_json

    check_range("--seed", seed or 0, 0)
    begin = time.perf_counter()
    entries, refused = _checked(files, seed=seed, runner=runner)
    if as_json:
        say_json(standings_json(entries))
    else:
        out.print(tables.standings(entries))
        if len(entries) == 1:
            out.print(tables.verdicts(entries[0]))
    for path, reasons in refused.items():
        for reason in reasons:
            say_progress(f"{path}: {reason}")
    for checked in entries:
        name = checked.entry.entry
        for verdict in checked.verdicts:
            if verdict.note:
                say_progress(f"{name}: {verdict.note}")
            if verdict.improves:
                say_progress(
                    f"{name}: {verdict.problem.name}: cost {verdict.cost:.9g} is better than the "
                    f"reference {verdict.problem.reference.cost:.9g}, which is not proven; "
                    "parenvs leaderboard update takes it over"
                )
    say_progress(f"{len(files)} judged in {time.perf_counter() - begin:.1f} s")
    _end(files, refused)


def table(
    folder: Folder = _SUBMISSIONS,
    path: Annotated[
        Path | None, typer.Option("--out", help="Write the table to this .md file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Rank a folder's entries, all judged anew, as Markdown. Status 2 if one is refused."""
    from parenvs.files import write_text
    from parenvs.leaderboard.ranking import page, standings_json

    files = _of_folder(folder)
    entries, refused = accepted(files, folder)
    text = json.dumps(standings_json(entries)) + "\n" if as_json else page(entries)
    if path is None:
        sys.stdout.write(text)
    else:
        write_text(path, text)
        say(f"table written to {path}")
    _end(files, refused)


def site(
    path: Annotated[
        Path, typer.Option("--out", help="Write the site to this folder, replaced as a whole.")
    ],
    folder: Folder = _SUBMISSIONS,
    docs: Annotated[
        str, typer.Option(help="Address of the documentation, which pages then link to.")
    ] = "",
) -> None:
    """Write the leaderboard as static pages with all plans, every entry judged anew."""
    from parenvs.leaderboard.site import write_site

    names = _of_folder(folder)
    entries, refused = accepted(names, folder)
    files = write_site(path, entries, docs)
    total = sum(len(text.encode()) for text in files.values())
    say(f"site written to {path}: {len(files)} files, {total / 1e6:.1f} MB; open index.html")
    _end(names, refused)


def update(files: Files) -> None:
    """Take over plans that are better than a reference without proof, as a new revision."""
    from parenvs.files import locked
    from parenvs.leaderboard.check import improvements
    from parenvs.leaderboard.tasks import tasks, tasks_file

    with locked(tasks_file(), beside=True):  # what is read is what is replaced
        entries, refused = accepted(files)
        better, known = improvements(entries), tasks()
        if better:
            known.improved(better).save()
        for task, references in better.items():
            for name, new in references.items():
                old = known.task(task).problems[name].reference
                gain = f"{old.cost:.9g} ({old.method}) -> {new.cost:.9g} ({new.method})"
                say(f"{task} {name}: {gain}")
        written = f"references written to {tasks_file()}"
        say(written if better else "no reference is improved; nothing written")
    _end(files, refused)


def _checked(
    files: Iterable[Path], folder: Path | None = None, seed: int | None = None, runner: str = ""
) -> tuple[list[CheckedEntry], dict[Path, tuple[str, ...]]]:
    """Judge entries: all that could be judged, and the reasons for refusing a file.

    An entry that breaks a rule is in both; a file that is no entry is refused only. So is one
    under ``folder`` whose path does not follow from its fields, and one on which the judge itself
    fails: no file stops the others.
    """
    from parenvs.leaderboard.check import check_file
    from parenvs.leaderboard.entry import EntryError, cleaned

    entries = []
    refused: dict[Path, tuple[str, ...]] = {}
    for path in files:
        try:
            checked = check_file(path, seed, runner)
            entry = checked.entry
            if folder is not None and path != folder / entry.file:
                name = entry.file.as_posix()
                raise ParenvsError(f"field 'entry' is {entry.entry!r}; call the file {name}")
        except EntryError as error:
            refused[path] = error.reasons
        except ParenvsError as error:
            refused[path] = (cleaned(str(error)),)
        # A stranger's file may break the evaluator; the others are still judged.
        except Exception as error:
            words = cleaned(f"{type(error).__name__}: {error}")
            refused[path] = (f"the judge failed ({words}); please open an issue with this file",)
        else:
            entries.append(checked)
            if checked.reasons:
                refused[path] = checked.reasons
    return entries, refused


def accepted(
    files: list[Path], folder: Path | None = None
) -> tuple[list[CheckedEntry], dict[Path, tuple[str, ...]]]:
    """Judge entries, and print one reason for each that is refused.

    Returns:
        The accepted entries, and the refused files with the reasons.

    Raises:
        ParenvsError: none is accepted.
    """
    entries, refused = _checked(files, folder)
    for path, reasons in refused.items():
        say_progress(f"{path}: {reasons[0]}; parenvs leaderboard check gives all reasons")
    legal = [checked for checked in entries if not checked.reasons]
    if not legal:
        _end(files, refused)
    return legal, refused


def _end(files: list[Path], refused: dict[Path, tuple[str, ...]]) -> None:
    if refused:
        names = ", ".join(map(str, refused))
        raise ParenvsError(f"{len(refused)} of {len(files)} refused: {names}")


def _of_folder(folder: Path) -> list[Path]:
    """Return the files of a folder that are called as entries are.

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
