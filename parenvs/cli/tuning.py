"""The command ``parenvs tune``: the next plan to try on one's own cluster."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parenvs.cli import options
from parenvs.clock.trials import Command
from parenvs.core.registry import TASKS, problem
from parenvs.core.task import FRAMEWORKS, option
from parenvs.errors import ParenvsError
from parenvs.files import write_text
from parenvs.tasks.hybrid.task import HybridOptions, Limits
from parenvs.view.commands import HelpAll
from parenvs.view.terminal import Json, Plot, example, note, say, say_json, say_progress
from parenvs.view.words import duration

if TYPE_CHECKING:
    from parenvs.tasks.hybrid.tune.study import Study, Trial


@dataclass(frozen=True)
class Files:
    """Options of the command; the help of each says what it is."""

    panel = "trials"
    journal: str = option("tune.jsonl", "File of what was tried, which is added to.", main=True)
    site: str | None = option(None, "File of what was tried on this cluster, of any model.")
    tell: float | None = option(None, "Seconds of a step of the last plan asked for.", main=True)
    oom: bool = option(False, "It ran out of memory.", main=True)
    failed: str | None = option(None, "Why it gave neither.")
    gib: float | None = option(None, "GiB on the fullest device at the peak.")
    plan: str | None = option(None, "Plan file that was run, in place of the last asked for.")
    show: bool = option(False, "Show what was tried, and what is believed now.", main=True)
    to: str | None = option(
        None, "Framework whose file is written, too (default: that of --for).", values=FRAMEWORKS
    )


def add(app: typer.Typer) -> None:
    """Add the command."""
    command = options.with_flags(Files, HybridOptions, Limits, Command)(tune)
    line = "tune llama3-70b --cluster 16x8:a100 --batch 512 --journal tune.jsonl"
    app.command("tune", epilog=example(line))(command)


def tune(
    given: options.Given,
    instance: Annotated[
        str | None, typer.Argument(help="The model; without one, that of the journal.")
    ] = None,
    cluster: options.ClusterText = None,
    plot: Plot = None,
    as_json: Json = False,
    help_all: HelpAll = False,
) -> None:
    """Propose the plan to try next on one's own cluster, from what was tried before.

    The cost model is what is believed at first; each trial teaches which software runs, and how
    fast. With --run all trials are made by themselves.
    """
    files = Files(**options.values_in(Files, given))
    command = Command(**options.values_in(Command, given))
    study = _study(files, options.without(given, Files, Command), instance, cluster)
    for words in study.notes:
        note(words)
    if (files.tell is not None) + files.oom + (files.failed is not None):
        _tell(study, files)
    elif command.run is not None:
        for _ in range(command.trials):
            trial = study.ask()
            for line in _asked(trial):
                say_progress(line)
            study.tell(trial, **command.measured(_written(study, files, trial)))
            say_progress(f"  {_result(study.trials[trial.number])}")
            if study.stop:
                break
    elif not files.show:
        trial = study.ask()
        paths = _written(study, files, trial)
        if as_json:
            say_json({**trial.to_json(), "plan": trial.plan.to_json()})
            return
        for line in _asked(trial):
            say(line)
        say(f"written to {', '.join(map(str, paths.values()))}")
        say(f"next: parenvs tune --journal {files.journal} --tell SECONDS, or --oom")
        return
    if plot is not None:
        from parenvs.tasks.hybrid.tune.figure import draw
        from parenvs.view.page import write

        write(plot, partial(draw, study))
    _show(study, files.show, as_json)


def _study(files: Files, given: options.Given, instance: str | None, cluster: str | None) -> Study:
    from parenvs.tasks.hybrid.tune.study import Study

    if instance is None:
        for name in given:
            raise ParenvsError(f"--{name} is of the model; name it, or leave it to the journal")
        return Study.of_journal(files.journal, site=files.site)
    settings = options.values_in(HybridOptions, given)
    model = options.Model(TASKS["hybrid"], instance, cluster, {**settings})
    stack = settings.pop("stack", None)
    # Plans name the graph, which the journal goes on with.
    if model.keeps_graph:
        instance = str(Path(files.journal).with_suffix(".npz"))
        model.read().save(instance)
        settings = {name: x for name, x in settings.items() if name in ("batch", "precision")}
    made = problem(instance, options.found_cluster(model), "hybrid", **settings)
    limits = options.values_in(Limits, given)
    return Study(made, stack, files.journal, files.site, None, limits)


def _written(study: Study, files: Files, trial: Trial) -> dict[str, Path]:
    """Write the plan of a trial, and the file of a framework, beside the journal."""
    from parenvs.exports.formats import export

    journal, to = Path(files.journal), files.to or study.limits.framework
    paths = {"plan": journal.with_name(f"{journal.stem}-{trial.number}.json")}
    trial.plan.save(paths["plan"])
    if to in FRAMEWORKS:
        paths["export"] = paths["plan"].with_suffix(f".{to}")
        write_text(paths["export"], export(trial.plan, to).text)
    return paths


def _tell(study: Study, files: Files) -> None:
    from parenvs.core.plan import load_plan

    waiting: list[Any] = [trial for trial in study.trials if trial.is_open]
    waiting = waiting if files.plan is None else [load_plan(files.plan)]
    if not waiting:
        raise ParenvsError(f"no trial is open: parenvs tune --journal {files.journal} asks for one")
    study.tell(waiting[-1], files.tell, files.oom, files.gib, files.failed)


def _asked(trial: Trial) -> list[str]:
    lines = [f"trial {trial.number}: {trial.plan.words}"]
    if trial.expected_seconds is not None and trial.interval is not None:
        words = f"{duration(trial.expected_seconds)} expected"
        low, high = map(duration, trial.interval)
        lines.append(f"  {words} ({low} to {high}), fits with {trial.fits:.0%}; {trial.why}")
    return lines


def _result(trial: Trial) -> str:
    if trial.failed:
        return f"failed: {trial.failed.splitlines()[0]}"
    return ", ".join(map(duration, trial.seconds)) or ("out of memory" if trial.oom else "open")


def _show(study: Study, more: bool, as_json: bool) -> None:
    best, stop, beliefs = study.best, study.stop, study.beliefs()
    if as_json:
        plan = None if best is None else best.plan.to_json()
        say_json({"trials": study.table(), **beliefs, "stop": stop, "best": plan})
        return
    for trial in study.trials if more else ():
        for line in _asked(trial):
            say(line)
        say(f"  {_result(trial)}")
    if more:
        say(f"stacks: {', '.join(f'{x} {y:.0%}' for x, y in beliefs['stacks'].items())}")
        words = "memory: {activations:.2f} times the activations, {gib:.1f} GiB besides"
        say(words.format(**beliefs))
    if best is not None:
        say(f"best: trial {best.number}, {_result(best)}: {best.plan.words}")
    for line in [f"stop: {stop}"] if stop else ["next, once asked for:", *_asked(study.preview())]:
        say(line)
