"""The commands ``parenvs plan`` and ``parenvs compare``."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parenvs.cli import options
from parenvs.core.registry import task_of_name
from parenvs.core.request import EXACT, STEPS
from parenvs.core.task import Task
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.view import terminal
from parenvs.view.commands import MORE
from parenvs.view.words import SEPARATOR

PlanCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Cluster: a preset, 16x8:h100, or a .json file (default: this machine's GPUs).",
        autocompletion=options.clusters,
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print the whole report, and what was tried.")
]
PlannerSeed = Annotated[
    int | None,
    typer.Option(help="Seed of everything random (default: 0).", rich_help_panel=MORE + "planners"),
]

if TYPE_CHECKING:
    from parenvs.core.request import Request
    from parenvs.core.task import Remarks

_SLOW = 2.0  # seconds from which a search is told


@options.with_flags("options", "search", plans=True)
def plan(
    given: options.Given,
    instance: options.Instance,
    task: options.TaskName = None,
    cluster: PlanCluster = None,
    agent: Annotated[
        str | None,
        typer.Option(
            help="Agent: exact (default), random, ppo, ...", autocompletion=options.agents
        ),
    ] = None,
    seed: PlannerSeed = None,
    steps: options.Steps = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            help="What is run today, to say how much faster the plan is: 'tp 8 pp 4', fsdp, or a "
            "file of a launcher's settings (default: what is usual).",
            rich_help_panel=MORE + "planners",
        ),
    ] = None,
    out_: terminal.PlanOut = None,
    plot: terminal.Plot = None,
    trace: Annotated[Path | None, terminal.trace_option(MORE + "planners")] = None,
    map_: Annotated[
        Path | None,
        typer.Option(
            "--map",
            help="Draw all plans, with this one marked (.png, ...).",
            rich_help_panel=MORE + "planners",
        ),
    ] = None,
    as_json: terminal.Json = False,
    verbose: Verbose = False,
) -> None:
    """Plan an instance with one agent, judge the plan, and write or draw it.

    What is not given is chosen where the task can choose it.
    """
    from parenvs.core.plan import baseline_of
    from parenvs.exports import formats

    model = _model(given, instance, task, cluster)
    if map_ is not None and not model.task.supports(Task.plan_map):
        raise options.not_an_option("map", model.task, options.tasks_with(Task.plan_map))
    agents = [agent or EXACT]
    request = _request(model, given, agents, seed, steps)
    model.check_out(out_)
    request, choice = _settled(model, request, agents)
    answer = _answer(request, agent, choice)
    report = model.named(answer.report, out_)
    # Another task's cost model takes longer to read than most plans take to find.
    is_asked = as_json or verbose or baseline is not None
    has_baseline = is_asked or bool(request.usual) or model.task.supports(Task.price)
    beside = None
    if report.legal and has_baseline:
        said: Any = baseline
        if baseline is not None and Path(baseline).is_file():
            said = partial(formats.read_back, Path(baseline).read_text(encoding="utf-8"))
        beside = baseline_of(request, answer, said)
    graph = model.graph() if model.keeps_graph else None
    runs = formats.runs_in(answer.report.plan, graph) if report.legal else {}
    has_remarks = model.task.supports(Task.remarks)
    remarks = model.task.remarks(request, answer, choice) if has_remarks else None
    write, lines = _files(model, report, out_, plot, trace)
    if map_ is not None and report.legal:
        write_plan, lines = write, (*lines, f"map written to {map_}")

        def write() -> None:
            from parenvs.view import page

            write_plan()
            page.write(map_, lambda: model.task.plan_map(request, report))

    with terminal.written(write, *lines, quiet=as_json):
        if as_json:
            content = {"plan": report.plan.to_json(), "report": report.with_price()}
            content |= {"runs_in": runs, "baseline": None if beside is None else beside.to_json()}
            if answer.notes:
                content["notes"] = list(answer.notes)
            terminal.say_json(content if remarks is None else {**content, **remarks.to_json()})
        else:
            if report.legal and not verbose:
                is_named = task is not None or task_of_name(instance) is not None
                named = "" if is_named else f"{model.task.name}: "
                words = model.task.views().answer(report)
                terminal.say_line(f"{named}{words}{SEPARATOR}{_proven(answer)}")
            else:
                terminal.print_report(report)
                terminal.say_line(terminal.proof(answer))
            for words in answer.notes:
                terminal.say_line(words)
            if beside is not None:
                terminal.say_line(beside.line())
            runs_somewhere = not all(isinstance(loss, str) for loss in runs.values())
            if runs and (verbose or runs_somewhere):
                terminal.say_line(formats.runs_words(runs))
            if verbose and remarks is not None:
                _say_remarks(remarks)
        terminal.refuse_illegal(report, f"the plan of {agents[0]!r} is illegal")
    if not as_json:
        terminal.say(f"next: {_next(model.task, report, out_, plot)}")


@options.with_flags("options", "search", plans=True)
def compare(
    given: options.Given,
    instance: options.Instance,
    task: options.TaskName = None,
    cluster: PlanCluster = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(
            help="Agent to compare; may be repeated; --out and --plot take the first's.",
            autocompletion=options.agents,
        ),
    ] = None,
    seed: PlannerSeed = None,
    steps: options.Steps = None,
    out_: terminal.PlanOut = None,
    plot: terminal.Plot = None,
    as_json: terminal.Json = False,
    verbose: Verbose = False,
) -> None:
    """Plan an instance with several agents and print them side by side.

    What is not given is chosen once for all.
    """
    from parenvs.cli import tables

    model = _model(given, instance, task, cluster)
    request = _request(model, given, agent, seed, steps, progress=True)
    model.check_out(out_)
    agents = agent or request.compared
    request, choice = _settled(model, request, agents)
    answers, failed = [], {}
    for name in agents:
        try:
            answers.append(_answer(request, name, choice))
        except ParenvsError as error:
            # The user named this agent, so its failure is the command's.
            if agent:
                raise
            failed[name] = str(error)
    if not answers:
        raise InfeasibleError("no agent found a plan")
    first = model.named(answers[0].report, out_)
    work, lines = _files(model, first, out_, plot)
    with terminal.written(work, *lines, quiet=as_json):
        if as_json:
            terminal.say_json({"plans": [*map(_answer_json, answers)], "failed": failed})
        else:
            terminal.out.print(tables.comparison(answers))
            for name, words in failed.items():
                terminal.say_line(f"{name}: {words}")
            for line in first.price.legend if first.price else ():
                terminal.say_line(line)
            if verbose and choice is not None and model.task.supports(Task.remarks):
                _say_remarks(model.task.remarks(request, choice.answer, choice))
        terminal.refuse_illegal(first, f"the plan of {answers[0].method!r} is illegal")


def _say_remarks(remarks: Remarks) -> None:
    for line in remarks.lines():
        terminal.say_line(line) if isinstance(line, str) else terminal.out.print(line)


def _answer_json(answer: Any) -> dict[str, Any]:
    return {
        "agent": answer.method,
        "plan": answer.plan.to_json(),
        "report": answer.report.with_price(),
        "claim": answer.claim,
        "bound": answer.bound,
        "seconds": answer.seconds,
    }


def _model(
    given: options.Given, instance: str, task: str | None, cluster: str | None
) -> options.Model:
    chosen = options.task_to_plan(task, instance, given)
    return options.Model.of(given, instance, chosen.name, cluster)


def _request(
    model: options.Model,
    given: options.Given,
    agents: Sequence[str] | None,
    seed: int | None,
    steps: int | None,
    **own: Any,
) -> Request:
    """Return the request, unless an option does nothing for any of the agents."""
    terminal.check_range("--steps", STEPS if steps is None else steps, 1)
    terminal.check_range("--seed", seed or 0, 0)
    request = model.request(seed or 0, steps or STEPS, here=True, **own)
    typed = [name for name, x in (("seed", seed), ("steps", steps)) if x is not None]
    request.refuse_unused(agents or request.compared, [*given, *typed])
    return request


def _settled(model: options.Model, request: Request, agents: Sequence[str]) -> tuple[Request, Any]:
    """Return the request with open choices made; note what is assumed for other planners."""
    if model.is_placed_here:
        terminal.note(f"cluster {options.found_cluster(model)}, the GPUs of this machine")
    with terminal.Step("searching stages and devices", min_seconds=_SLOW):
        settled, choice = request.shared(agents).settled(agents)
    if choice is not None and choice.assumed:
        terminal.note(choice.assumed)
    return settled, choice


def _answer(request: Request, agent: str | None, choice: Any) -> Any:
    # Choosing stages and devices has found this agent's plan already.
    if choice is not None and (agent or EXACT) == choice.answer.method:
        return choice.answer
    with terminal.Step(f"planning with {agent or EXACT}", min_seconds=_SLOW):
        return request.best() if agent is None else request.run(agent)


def _proven(answer: Any) -> str:
    if answer.proven:
        return "optimal among those searched" if answer.among else "optimal"
    if answer.choice:
        return str(answer.choice)
    over = "" if answer.gap is None else f", at most {max(answer.gap, 0.0):.2%} over the best"
    return f"not proven{over}"


def _files(
    model: options.Model,
    report: Any,
    path: Path | None,
    plot: Path | None,
    trace: Path | None = None,
) -> tuple[Callable[[], None], tuple[str, ...]]:
    if not report.legal:
        return lambda: None, ()
    write, lines = terminal.files_of(report, path, plot, trace)

    def work() -> None:
        model.save(path)
        write()

    return work, lines


def _next(task: Task, report: Any, path: Path | None, plot: Path | None) -> str:
    if path is None:
        return f"parenvs {shlex.join([*sys.argv[1:], '--out', 'plan.json'])}"
    name = shlex.quote(str(path))
    if not task.supports(Task.explain):
        picture = "" if plot else f" --plot {shlex.quote(str(path.with_suffix('.png')))}"
        return f"parenvs judge {name}{picture}"
    commands = [f"parenvs explain {name}"]
    if task.supports(Task.decisions) and importlib.util.find_spec("jax"):
        from parenvs.shardy.verify import has_module

        if has_module(report.plan.instance):
            commands.append(f"parenvs verify {name}")
    return "; ".join(commands)
