"""The commands ``parenvs elastic``: policies side by side, and a job that follows one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parenvs.cli.options import Given, values_in, with_flags
from parenvs.core.task import ENGINES
from parenvs.errors import ParenvsError, refuse_unknown
from parenvs.jobs.journal import SHORTEST, Job
from parenvs.tasks.elastic.task import POLICIES
from parenvs.view import terminal
from parenvs.view.commands import MORE, Commands, Group, HelpAll, of

if TYPE_CHECKING:
    from rich.table import Table

    from parenvs.tasks.elastic.problem import Elastic, Policy, Run


def elastic(
    trace: Annotated[
        str,
        typer.Argument(
            metavar="TRACE", help="p3, g4dn, a .csv file of a trace, or SET/NAME of a chain."
        ),
    ],
    model: Annotated[str | None, typer.Option(help="The model (default: gpt-1.5b).")] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            help="Policy: a rule, learned, an .npz file or a folder of parenvs train; again for "
            "more; all (default: look-ahead).",
            autocompletion=of(*POLICIES, "learned", "all"),
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="Cluster for the cost model, its servers the nodes: 16x8:a100."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Samples of a step, with --cluster (default: 512).")
    ] = None,
    interval: Annotated[float, typer.Option(help="Seconds between two decisions.")] = 60.0,
    seed: terminal.Seed = 0,
    plot: terminal.Plot = None,
    as_json: terminal.Json = False,
) -> None:
    """Let policies choose plans while nodes leave and come; the last policy is shown in full.

    The table has the hindsight optimum of the same events, which no policy exceeds, and on a chain
    the optimal policy.
    """
    from parenvs.agents.elastic.policies import play
    from parenvs.tasks.elastic.problem import hindsight
    from parenvs.tasks.elastic.problems import load_elastic

    terminal.check_range("--seed", seed, 0)
    with terminal.Step("making the candidate plans and what they cost"):
        problem = load_elastic(trace, model, interval, cluster, batch)
    course = problem.drawn(seed)
    runs: list[Run] = []
    for policy in _policies(problem, policies or ["look-ahead"]):
        with terminal.Step(f"{policy.name} on {problem.name}", 1.0):
            runs.append(play(problem, course, policy))
    with terminal.Step(f"hindsight on {problem.name}", 1.0):
        runs.append(hindsight(problem, course))
    work, lines = terminal.files_of(runs[-2], plot=plot)
    with terminal.written(work, *lines, quiet=as_json):
        if as_json:
            terminal.say_json({"runs": [run.to_json() for run in runs]})
        else:
            terminal.out.print(_table(runs))
            terminal.print_report(runs[-2])


def _policies(problem: Elastic, names: list[str]) -> list[Policy]:
    from parenvs.agents.elastic.planners import policy_of
    from parenvs.agents.elastic.policies import POLICIES, optimal
    from parenvs.agents.learning.options import LEARNED

    is_chain = problem.source.is_chain
    if names == ["all"]:
        names = [*POLICIES, LEARNED, *(["optimal"] if is_chain else [])]
    makers: list[Callable[[], Policy]] = [
        partial(optimal, problem) if name == "optimal" and is_chain else policy_of(name)
        for name in names
    ]
    policies: list[Policy] = []
    for name, make in zip(names, makers, strict=True):
        with terminal.Step(f"preparing {name}", 1.0):
            policies.append(make())
    return policies


def _table(runs: list[Run]) -> Table:
    from parenvs.view import tables

    table = tables.empty(runs[0].problem.name, "policy", "samples", "of the ideal", "of hindsight",
                  "changes", "stops", "state lost", "change time")  # fmt: skip
    best = runs[-1].total
    for run in runs:
        table.add_row(
            run.policy, f"{run.total:,.0f}", f"{run.share:.2%}",
            f"{run.total / best:.2%}" if best else "", str(run.changed.sum()),
            str(run.stopped.sum()), str(run.gone.sum()), f"{run.seconds.sum() / 60:.1f} min",
        )  # fmt: skip
    return table


DEFAULT = "compare"


class _Group(Group):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


def add(app: typer.Typer) -> None:
    """Add the commands."""
    group = Commands(
        cls=_Group,
        help="Nodes that come and go: elastic TRACE compares policies, elastic run drives a job.",
    )
    line = "elastic compare p3 --model gpt-1.5b --policy hysteresis --plot run.png"
    group.command(DEFAULT, epilog=terminal.example(line))(elastic)
    line = "elastic run mine.csv my_model.py:build --policy fastest --processes 8 --batch 24"
    group.command("run", epilog=terminal.example(line))(with_flags(Job)(run))
    app.add_typer(group, name="elastic")


def run(
    given: Given,
    trace: Annotated[
        str, typer.Argument(metavar="TRACE", help="A .csv file of a trace, p3, g4dn.")
    ],
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME",
            help="Function that returns a PyTorch module, its loss, a data set and, optionally, "
            "a function that makes the optimizer.",
        ),
    ],
    folder: Annotated[
        Path, typer.Option("--out", help="Write the job to this folder, or continue it.")
    ] = Path("elastic-run"),
    launcher: Annotated[
        str,
        typer.Option(
            metavar="|".join(ENGINES),
            help="Nodes are local processes, or nodes of Ray (extra ray).",
            autocompletion=of(*ENGINES),
            rich_help_panel=MORE + Job.panel,
        ),
    ] = "local",
    address: terminal.Address = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Also train as many steps in one process, and compare.",
            rich_help_panel=MORE + Job.panel,
        ),
    ] = False,
    as_json: terminal.Json = False,
    help_all: HelpAll = False,
) -> None:
    """Train a PyTorch module while nodes leave and come: local processes stand for nodes.

    In every interval the policy chooses a plan; the state moves between processes. A node that
    leaves is killed. Prints measured beside predicted values. Run it again after a kill.
    """
    from parenvs.agents.elastic.planners import policy_of
    from parenvs.files import write_text
    from parenvs.jobs.member import nodes_of_ray
    from parenvs.jobs.run import prepare
    from parenvs.view.page import write

    job = Job(trace, source, **values_in(Job, given))
    if hasattr(policy_of(job.policy), "recovery"):
        raise ParenvsError(f"--policy {job.policy} drives no job, as it does not move the state")
    for name, rate in (("speed", job.speed), ("step-seconds", job.step_seconds)):
        if rate is not None and not SHORTEST <= rate <= 1 / SHORTEST:
            raise ParenvsError(f"--{name} must be from 1e-9 to 1e9, not {rate}")
    refuse_unknown("--launcher: no launcher", launcher, ENGINES)
    if address is not None and launcher == "local":
        raise ParenvsError("--address is of --launcher ray")
    with ExitStack() as stack:
        where = stack.enter_context(nodes_of_ray(address)) if launcher == "ray" else ()
        with terminal.Step("planning the model", 1.0):
            ready = prepare(job, folder)
        happened = ready.drive(terminal.say_progress, verify, *where)
    write_text(folder / "run.md", "\n\n".join(happened.markdown()) + "\n")
    write(folder / "run.png", happened.figure)
    if as_json:
        terminal.say_json(happened.to_json())
    else:
        terminal.say_text("\n\n".join(happened.markdown()))
        terminal.say(f"written to {folder}")
