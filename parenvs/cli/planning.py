"""The commands ``parenvs plan`` and ``parenvs compare``."""

from __future__ import annotations

import dataclasses
import importlib.util
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parenvs.cli import hybrid, tables
from parenvs.cli.hybrid import Map, print_alternatives, write_map
from parenvs.cli.model import Model
from parenvs.cli.options import Json, PlanOut, Plot, with_request
from parenvs.cli.report import (
    Step,
    note,
    out,
    print_report,
    proof,
    refuse_illegal,
    say,
    say_json,
    write,
)
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.partition.plan import PartitionPlan
from parenvs.view.words import duration, plural

if TYPE_CHECKING:
    from parenvs.agents.pipeline.shapes import Choice
    from parenvs.core.request import Request

_SLOW = 2.0  # seconds from which a search is told


def add_planning(app: typer.Typer) -> None:
    """Add the commands that plan."""
    app.command()(with_request(plan))
    app.command()(with_request(compare))


def plan(
    request: Request,
    model: Model,
    agent: Annotated[
        str, typer.Option(help="exact, random, ppo, ... (parenvs list shows all).")
    ] = "exact",
    refine: Annotated[
        bool, typer.Option("--refine", help="Search around the answer of agent pretrained.")
    ] = False,
    out_: PlanOut = None,
    plot: Plot = None,
    map_: Map = None,
    as_json: Json = False,
) -> None:
    """Plan a model with one agent, judge the plan, and write or draw it.

    The number of pipeline stages and of devices is chosen unless it is given.
    """
    if refine:
        agent = _refined(agent)
    model.check_out(out_)
    if map_ is not None and not isinstance(request.problem, Hybrid):
        raise ParenvsError(f"--map is an option of --task {HybridPlan.task}")
    request, choice = _settled(request, [agent])
    answer = _answer(request, agent, choice)
    report = model.named(answer.report, out_)
    gaps = _gaps(request, answer)
    if as_json:
        content = {"plan": report.plan.to_json(), "report": report.to_json()}
        if gaps:
            content["gaps"] = [dataclasses.asdict(gap) for gap in gaps]
        if answer.notes:
            content["notes"] = list(answer.notes)
        if choice is not None:
            content["tried"] = [tried.to_json() for tried in choice.tried]
        say_json(content)
    else:
        print_report(report)
        say(proof(answer))
        for words in answer.notes:
            say(words)
        for gap in gaps:
            say(gap.text())
        if choice is not None:
            _print_choice(choice)
        if isinstance(report, HybridReport):
            print_alternatives(request, report)
    refuse_illegal(report, f"the plan of {agent!r} is illegal")
    model.save(out_)
    write(report, out_, plot, quiet=as_json)
    if isinstance(report, HybridReport):
        write_map(request, report, map_, quiet=as_json)
    if not as_json:
        say(f"next: {_next(report, out_, plot)}")


def compare(
    request: Request,
    model: Model,
    agent: Annotated[
        list[str] | None,
        typer.Option(help="Agents to compare, again for each; --out and --plot take the first's."),
    ] = None,
    out_: PlanOut = None,
    plot: Plot = None,
) -> None:
    """Plan a model with several agents and print them side by side.

    All plan the same number of pipeline stages on the same devices, chosen unless given.
    """
    request = dataclasses.replace(request, progress=True)
    model.check_out(out_)
    agents = agent or request.compared
    request, choice = _settled(request, agents)
    rows: list[tuple[Any, Any]] = []
    for name in agents:
        try:
            answer = _answer(request, name, choice)
        except ParenvsError as error:
            if agent:  # the user named this agent, so its failure is the command's
                raise
            say(f"{name}: {error}")
            continue
        rows.append((answer, answer.report))
    if not rows:
        raise InfeasibleError("no agent found a plan")
    is_hybrid = isinstance(rows[0][1], HybridReport)
    out.print(hybrid.comparison(rows) if is_hybrid else tables.comparison(rows))
    if choice is not None:
        _print_choice(choice)
    first = model.named(rows[0][1], out_)
    refuse_illegal(first, f"the plan of {rows[0][0].method!r} is illegal")
    model.save(out_)
    write(first, out_, plot)


def _settled(request: Request, agents: Sequence[str]) -> tuple[Request, Choice | None]:
    """Return the request with its shape chosen; what is assumed for other planners is told."""
    for agent in agents:
        request.check(agent)
    with Step("searching stages and devices", least=_SLOW):
        settled, choice = request.settled(agents)
    if choice is not None and choice.fewest > 1:
        shape = choice.answer.problem
        note(
            f"stages and devices are those of the shortest plan of two stages or more: "
            f"{shape.stages} on {plural(shape.cluster.devices, 'device')} "
            "(--stages, --devices-used)"
        )
    return settled, choice


def _answer(request: Request, agent: str, choice: Choice | None) -> Any:
    """Return a planner's answer; that of the exact one came with the choice of the shape."""
    if choice is not None and agent == choice.answer.method:
        return choice.answer
    with Step(f"planning with {agent}", least=_SLOW):
        return request.run(agent)


def _print_choice(choice: Choice) -> None:
    """Print the shapes that were tried, and that the best one leaves devices idle if it does."""
    used, most = choice.answer.problem.cluster.devices, choice.tried[0]
    if used < choice.devices:
        words = f"uses {used} of {choice.devices} devices"
        if most.devices == choice.devices and most.stages is not None:
            slower = f"{duration(most.length)} on {most.devices}"
            words += f": more are slower ({slower})" if choice.answer.proven else f" ({slower})"
        say(words)
    if len(choice.tried) > 1:
        out.print(tables.shapes(choice))


def _next(report: Any, path: Path | None, plot: Path | None) -> str:
    """Return a command that is worth running after ``parenvs plan``."""
    if path is None:
        return f"parenvs {shlex.join([*sys.argv[1:], '--out', 'plan.json'])}"
    name = shlex.quote(str(path))
    if isinstance(report.plan, HybridPlan):
        return f"parenvs explain {name}"
    if isinstance(report.plan, PartitionPlan):
        from parenvs.shardy.module import has_module

        commands = [f"parenvs explain {name}"]
        if importlib.util.find_spec("jax") and has_module(report.plan.instance):
            commands.append(f"parenvs verify {name}")
        return "; ".join(commands)
    picture = "" if plot else f" --plot {shlex.quote(str(path.with_suffix('.png')))}"
    return f"parenvs judge {name}{picture}"


def _refined(agent: str) -> str:
    """Return the planner that searches around the answer of planner ``agent``."""
    from parenvs.agents.names import GENERAL, REFINED

    if agent not in GENERAL:
        raise ParenvsError(f"--refine is an option of --agent {GENERAL[0]}, not of {agent!r}")
    return REFINED


def _gaps(request: Any, answer: Any) -> list[Any]:
    """Return the gaps to the optimum of an answer whose planner was trained on other problems."""
    from parenvs.agents.learning.pretrained.planner import gaps
    from parenvs.agents.names import GENERAL

    if answer.method not in GENERAL:
        return []
    return gaps(request.points, answer)
