"""The commands on plan files: judge, diff, explain, verify, export, reshard."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from parenvs import view
from parenvs.cli import options
from parenvs.core.registry import TASKS, task_of, task_of_name
from parenvs.core.task import FRAMEWORKS, Evidence, GraphOptions, Task
from parenvs.errors import (
    InfeasibleError,
    ParenvsError,
    PlanError,
    UnknownInstanceError,
    refuse_unknown,
)
from parenvs.view import terminal


@options.with_flags(GraphOptions, Evidence)
def judge(
    given: options.Given,
    file: terminal.PlanFile,
    instance: terminal.OtherInstance = None,
    plot: terminal.Plot = None,
    as_json: terminal.Json = False,
) -> None:
    """Judge a plan file: legality, cost, memory. Exit status 2 if it is illegal."""
    from parenvs.exports import formats

    report = _judged(file, instance, given)
    if trials := options.values_in(Evidence, given):
        options.require("judge by trials", task_of(report), Task.tune)
        report = task_of(report).tune(report.problem, **trials).judged(report)
    work, lines = terminal.files_of(report, plot=plot)
    runs = formats.runs_in(report.plan) if report.legal else {}
    with terminal.written(work, *lines, quiet=as_json):
        if as_json:
            terminal.say_json({**report.with_price(), "runs_in": runs})
        else:
            terminal.print_report(report)
            terminal.say(formats.runs_words(runs)) if runs else None
    terminal.refuse_illegal(report, f"{file}: illegal")


@options.with_flags(GraphOptions)
def diff(
    given: options.Given,
    old: Annotated[Path, typer.Argument(metavar="A", help="A plan file.")],
    new: Annotated[
        Path, typer.Argument(metavar="B", help="Another plan file of the same problem.")
    ],
    instance: terminal.OtherInstance = None,
    as_json: terminal.Json = False,
) -> None:
    """Say what two plans of one problem decide differently, and what that costs, part by part.

    Differences are B less A. Illegal plans are compared, too.
    """
    from parenvs.core.plan import load_plan
    from parenvs.diff import difference, require_same_problem
    from parenvs.view.diff_text import text

    names = (str(old), str(new))
    require_same_problem(load_plan(old), load_plan(new), names)
    differences = difference(*(_judged(file, instance, given) for file in (old, new)))
    if as_json:
        terminal.say_json(differences.to_json())
    else:
        terminal.say_text(text(differences, names))


@options.with_flags("options")
def explain(
    given: options.Given,
    target: Annotated[
        str, typer.Argument(metavar="PLAN|INSTANCE", help="A plan file (.json), a name or a graph.")
    ],
    variable: Annotated[
        str | None, typer.Option(help="Glob over paths (default: all, equal layers together).")
    ] = None,
    instance: terminal.OtherInstance = None,
    task: options.TaskName = None,
    cluster: options.ClusterText = None,
    trace: Annotated[Path | None, terminal.trace_option()] = None,
    ranks: Annotated[
        str | None,
        typer.Option(help="all: a process of the trace is a rank, not a stage."),
    ] = None,
    as_json: terminal.Json = False,
) -> None:
    """Explain why a plan is as it is, or what the plans of an instance may do.

    Of a plan, by its task: why each variable is partitioned or not, or what other values on each
    axis would cost. Of an instance: what is tied together, what blocks what, what excludes what.
    """
    if ranks is not None:
        refuse_unknown("--ranks: no choice", ranks, ("all",))
        if trace is None:
            raise ParenvsError("--ranks is an option for traces; give --trace FILE, too")
    if not target.endswith(".json"):
        for name, value in (("instance", instance), ("trace", trace)):
            if value is not None:
                raise ParenvsError(f"--{name} is an option for plan files; give the instance alone")
        named = task is not None or task_of_name(target) is not None
        able = options.tasks_with(Task.explain_problem)[0].name
        model = options.Model.of(given, target, task if named else able, cluster)
        options.require(f"{target}: explain", model.task, Task.explain_problem)
        words, content = model.task.explain_problem(model.problem(), variable)
        terminal.say_json(content) if as_json else terminal.say_text(words)
        return
    reading = [flag.name for flag in options.flags_in(GraphOptions)]
    wrong = [name for name in given if name not in reading]
    if cluster is not None or wrong:
        name = "cluster" if cluster is not None else wrong[0]
        raise ParenvsError(f"--{name} is an option for instances; {target} is a plan with its own")
    report = _judged(Path(target), instance, given)
    chosen = task_of(report)
    options.require(f"{target}: explain", chosen, Task.explain)
    words, content = chosen.explain(report, variable)
    work, lines = terminal.files_of(report, trace=trace, every_rank=ranks is not None)
    with terminal.written(work, *lines, quiet=as_json):
        if as_json:
            terminal.say_json({"report": report.with_price(), **content})
        else:
            terminal.say_text(words)
            terminal.say_price(report)
    terminal.refuse_illegal(report, f"{target}: illegal")


def verify(
    file: terminal.PlanFile,
    module: Annotated[
        str | None,
        typer.Option(help="HLO of the graph (.pb, .txt), if the plan's instance is no such file."),
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the step on virtual devices, and count.")
    ] = False,
    as_json: terminal.Json = False,
) -> None:
    """Check a plan's partitioning against XLA's partitioner (extra jax). Status 2 if they differ.

    With --compile, XLA compiles the step ahead of time, of plans of one stage: shardings kept,
    collectives and memory beside the judge's.
    """
    from parenvs.core.plan import load_plan
    from parenvs.shardy.verify import need_jax, verify_plan

    plan = load_plan(file)
    if compiled:
        need_jax()
        from parenvs.clock.compilation import compile_plan

        compilation = compile_plan(plan, module)
        options.print_result(compilation, as_json)
        if not compilation.agrees:
            words = "XLA shards it otherwise, or communicates other than predicted"
            raise ParenvsError(f"{file}: {words}")
        return
    task = task_of(plan)
    options.require(f"{file}: verify", task, Task.decisions)
    verification = verify_plan(plan, module)
    options.print_result(verification, as_json)
    if not verification.agrees:
        raise ParenvsError(f"{file}: XLA's partitioner disagrees or has to reshard")
    if not verification.legal:
        raise InfeasibleError(f"{file}: illegal; parenvs judge gives the reasons")


LOSS = 0.01
"""Share by which a step may be longer as a framework runs it."""


def export(
    file: terminal.PlanFile,
    to: Annotated[
        str,
        typer.Option(
            help=f"Framework: {', '.join(FRAMEWORKS)}.", autocompletion=options.frameworks
        ),
    ],
    path: Annotated[
        Path | None, typer.Option("--out", help="Write to this file instead of standard output.")
    ] = None,
    lossy: Annotated[
        bool,
        typer.Option("--lossy", help="Export a plan that runs slower there than planned, too."),
    ] = False,
) -> None:
    """Write a plan in the format of a framework that runs it.

    A plan that takes over 1 % longer as the framework runs it is refused; parenvs plan --for
    FRAMEWORK plans what that runs as it is.
    """
    from parenvs.core.plan import load_plan
    from parenvs.exports import formats
    from parenvs.files import write_text

    result = formats.export(load_plan(file), to)
    for words in result.notes:
        terminal.note(words)
    if result.loss > LOSS and not lossy:
        longer = "does not run" if result.loss == inf else f"takes {result.loss:.1%} longer"
        raise InfeasibleError(
            f"{file}: as {to} runs it, a step {longer}; plan with --for {to}, or export with "
            "--lossy"
        )
    if path is None:
        terminal.say_text(result.text.rstrip("\n"))
        return
    write_text(path, result.text)
    terminal.say(f"written to {path}")


def reshard(
    checkpoint: Annotated[
        Path, typer.Argument(metavar="CHECKPOINT", help="Folder with index.json and its parts.")
    ],
    new: Annotated[
        Path, typer.Option("--new", help="Plan file that the checkpoint is written for.")
    ],
    old: Annotated[
        Path | None,
        typer.Option("--old", help="Plan file that the checkpoint must be of (default: any)."),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Option("--out", help="Write it to this folder (default: it is replaced)."),
    ] = None,
    instance: terminal.OtherInstance = None,
    as_json: terminal.Json = False,
) -> None:
    """Rewrite a PyTorch checkpoint for a plan with other degrees and another number of ranks.

    Prints the bytes that each rank reads beside those predicted. A kill leaves the old checkpoint
    whole.
    """
    from parenvs.core.plan import load_plan
    from parenvs.exports import checkpoint as resharding
    from parenvs.instances import load_graph

    before = None if old is None else load_plan(old)
    graph = None if instance is None else load_graph(instance)
    with terminal.Step(f"writing {path or checkpoint} for {new}", 1.0):
        resharded = resharding.reshard(checkpoint, load_plan(new), before, path, graph)
    options.print_result(resharded, as_json)
    if not as_json:
        terminal.say(f"written to {path or checkpoint}")
    if not resharded.agrees:
        terminal.note(
            "the bytes read are not those predicted: some weights have no optimizer state, or "
            "replicas cannot share rows evenly"
        )


def _judged(file: Path, instance: str | None, given: options.Given) -> Any:
    """Judge a plan file, on its own instance unless another one is given."""
    from parenvs.core.plan import judge, load_plan
    from parenvs.instances import load_graph

    reading, plan = options.values_in(GraphOptions, given), load_plan(file)
    if not (instance or reading):
        try:
            return judge(plan)
        except UnknownInstanceError as error:
            raise UnknownInstanceError(f"{file}: field 'instance': {error}") from None
        except PlanError as error:
            raise PlanError(f"{file}: {error}") from None
    target = instance or plan.instance
    # Options of reading need the graph itself; without them a name is enough.
    if not reading:
        return judge(plan, target)
    arguments = options.Model(task_of(plan), target).graph_arguments
    if arguments is None:
        name = next(x.name for x in options.flags_in(GraphOptions) if x.name in given)
        raise ParenvsError(f"{target}: no graph that plans are made of; leave out --{name}")
    return judge(plan, load_graph(target, **{**arguments, **reading}))


_CLUSTER = "C"
"""Preset on which an instance is shown to several tasks, unless another is given."""


def list_(task: options.TaskName = None, as_json: terminal.Json = False) -> None:
    """List shipped instances and clusters, and the sets, agents and environments of each task.

    With --task also what a problem of its sets is called.
    """
    from parenvs.cli import tables

    chosen = list(TASKS.values()) if task is None else [TASKS.named(task)]
    has_graphs = any(listed.supports(Task.reading) for listed in chosen)
    shown = [tables.instances(), tables.clusters()] if has_graphs else []
    facts = {listed.name: dict(_facts(listed, example=task is not None)) for listed in chosen}
    if as_json:
        terminal.say_tables(*shown, as_json=True, tasks=facts)
        return
    terminal.say_tables(*shown)
    for listed in chosen:
        terminal.say(f"{listed.name}: {listed.words}")
        for title, names in facts[listed.name].items():
            if names:
                terminal.say(f"  {title}: {', '.join(names)}")


def _facts(task: Task, example: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield what there is of a task, by title; an example of a set's problems takes its time."""
    from parenvs.core.sets import set_of

    yield "sets", list(task.sets)
    if example and task.sets:
        yield "problems of the last set", [*set_of(task.sets[-1]).problems[:2], "..."]
    yield "generated problems, of any number", [f"{x}/{name}" for x, name in task.drawn.items()]
    yield "names", [*task.instances, *task.own_names()]
    yield "agents", list(task.planners)
    yield "environments", list(task.envs)


@options.with_flags("options")
def show(
    given: options.Given,
    instance: options.Instance,
    task: options.TaskName = None,
    cluster: options.ClusterText = None,
    as_json: terminal.Json = False,
) -> None:
    """Show an instance: a graph's inputs, its chain on a cluster, its dimension classes; a problem.

    Without --task a graph or profile is shown as every task sees it that has a table of it.
    """
    from parenvs.cli import tables

    model = options.Model.of(given, instance, task, cluster)
    shown = []
    if model.graph_arguments is not None:
        graph = model.read()
        shown += [tables.graph(graph), tables.parameters(graph)]
    if task is not None or task_of_name(instance) is not None:
        if model.task.supports(Task.tables):
            shown += model.task.tables(instance, cluster, model.options)
            terminal.say_tables(*shown, as_json=as_json)
        elif as_json:
            terminal.say_tables(*shown, as_json=True, text=view.text(model.problem()).split("\n"))
        else:
            terminal.say_tables(*shown)
            words = view.text(model.problem(), color=terminal.out.colored)
            terminal.say_text(words, painted=terminal.out.colored)
        return
    where = _CLUSTER if cluster is None else cluster
    shown += model.task.tables(instance, where, model.options)
    reading = {flag.place[0] for flag in options.flags_in(GraphOptions)}
    shared = {name: value for name, value in model.options.items() if name in reading}
    for other in options.tasks_with(Task.tables):
        if other is not model.task:
            with contextlib.suppress(ParenvsError):  # it is no problem of that task
                shown += list(other.tables(instance, where, shared))
    terminal.say_tables(*shown, as_json=as_json)
