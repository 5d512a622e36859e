"""The commands ``parenvs elastic``: policies side by side, and a job that follows one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parenvs.agents.names import POLICIES
from parenvs.errors import ParenvsError, shown
from parenvs.view.commands import MORE, Commands, Group, HelpAll, of
from parenvs.view.terminal import (
    Json,
    Plot,
    Seed,
    Step,
    example,
    files_of,
    out,
    print_report,
    say,
    say_json,
    say_progress,
    say_text,
    written,
)

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
    seed: Seed = 0,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Let policies choose plans while nodes leave and come; the last policy is shown in full.

    The table has the hindsight optimum of the same events, which no policy exceeds, and on a chain
    the optimal policy.
    """
    from parenvs.agents.elastic.policies import play
    from parenvs.tasks.elastic.problem import hindsight
    from parenvs.tasks.elastic.problems import load_elastic

    if seed < 0:
        raise ParenvsError(f"--seed must be a whole number from 0, not {seed}")
    with Step("making the candidate plans and what they cost"):
        problem = load_elastic(trace, model, interval, cluster, batch)
    course = problem.drawn(seed)
    runs: list[Run] = []
    for policy in _policies(problem, policies or ["look-ahead"]):
        with Step(f"{policy.name} on {problem.name}", 1.0):
            runs.append(play(problem, course, policy))
    with Step(f"hindsight on {problem.name}", 1.0):
        runs.append(hindsight(problem, course))
    work, lines = files_of(runs[-2], plot=plot)
    with written(work, *lines, quiet=as_json):
        if as_json:
            say_json({"runs": [run.to_json() for run in runs]})
        else:
            out.print(_table(runs))
            print_report(runs[-2])


def _policies(problem: Elastic, names: list[str]) -> list[Policy]:
    from parenvs.agents.elastic.planners import policy_of
    from parenvs.agents.elastic.policies import POLICIES, optimal
    from parenvs.agents.names import LEARNED

    is_chain = problem.source.is_chain
    if names == ["all"]:
        names = [*POLICIES, LEARNED, *(["optimal"] if is_chain else [])]
    makers: list[Callable[[], Policy]] = [
        partial(optimal, problem) if name == "optimal" and is_chain else policy_of(name)
        for name in names
    ]
    policies: list[Policy] = []
    for name, make in zip(names, makers, strict=True):
        with Step(f"preparing {name}", 1.0):
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
        """See click."""
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


def add(app: typer.Typer) -> None:
    """Add the commands."""
    group = Commands(
        cls=_Group,
        help="Nodes that come and go: elastic TRACE compares policies, elastic run drives a job.",
    )
    for command, name, line in (
        (elastic, DEFAULT, "compare p3 --model gpt-1.5b --policy hysteresis --plot run.png"),
        (run, "run", "run mine.csv my_model.py:build --policy fastest --processes 8 --batch 24"),
    ):
        group.command(name, epilog=example(f"elastic {line}"))(command)
    app.add_typer(group, name="elastic")


def run(
    trace: Annotated[
        str, typer.Argument(metavar="TRACE", help="A .csv file of a trace, p3, g4dn.")
    ],
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:NAME",
            help="Function that returns a PyTorch module, its loss, a data set and, if wanted, a "
            "function that makes the optimiser.",
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(
            help="Policy: a rule, parcae, learned (the network that ships), an .npz file of "
            "another one, a folder of parenvs train ElasticPlan-v1.",
            autocompletion=of(*POLICIES, "learned"),
        ),
    ] = "fastest",
    processes: Annotated[int, typer.Option(help="Processes at a time at most, each a node.")] = 8,
    devices: Annotated[
        int,
        typer.Option(help="Devices of a node, each a process.", rich_help_panel=MORE + "the job"),
    ] = 1,
    batch: Annotated[int, typer.Option(help="Samples of a step.")] = 24,
    interval: Annotated[
        float,
        typer.Option(
            help="Seconds between two decisions, of the trace.", rich_help_panel=MORE + "the job"
        ),
    ] = 60.0,
    speed: Annotated[
        float,
        typer.Option(
            help="Seconds of the trace in one second here.", rich_help_panel=MORE + "the job"
        ),
    ] = 12.0,
    steps: Annotated[
        int | None,
        typer.Option(
            "--interval-steps",
            help="Steps of an interval, in place of its seconds.",
            rich_help_panel=MORE + "the job",
        ),
    ] = None,
    step_seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds of a step on one node (default: as measured).",
            rich_help_panel=MORE + "the job",
        ),
    ] = None,
    notice: Annotated[
        bool,
        typer.Option(
            "--notice",
            help="Nodes leave at a step's end (default: in its middle).",
            rich_help_panel=MORE + "the job",
        ),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Cluster that nodes stand for, as 8x1:v100 (default: cores).",
            rich_help_panel=MORE + "the job",
        ),
    ] = None,
    every: Annotated[
        int,
        typer.Option(help="Intervals between two checkpoints.", rich_help_panel=MORE + "the job"),
    ] = 10,
    seed: Seed = 0,
    folder: Annotated[
        Path, typer.Option("--out", help="Write the job to this folder; one that is there goes on.")
    ] = Path("elastic-run"),
    launcher: Annotated[
        str,
        typer.Option(
            metavar="local|ray",
            help="What nodes are: processes here, or of Ray (extra ray).",
            autocompletion=of("local", "ray"),
            rich_help_panel=MORE + "the job",
        ),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT of a cluster of Ray, or auto (default: nodes on this machine).",
            rich_help_panel=MORE + "the job",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Also train as many steps in one process, and compare.",
            rich_help_panel=MORE + "the job",
        ),
    ] = False,
    as_json: Json = False,
    help_all: HelpAll = False,
) -> None:
    """Train a PyTorch module while nodes leave and come: local processes stand for nodes.

    In every interval the policy chooses; the job stops, its state moves between processes, it goes
    on. A node that leaves is killed. What happened is shown beside what was predicted. The same
    command goes on after a kill.
    """
    from parenvs.agents.elastic.planners import policy_of
    from parenvs.files import write_text
    from parenvs.jobs.journal import SHORTEST
    from parenvs.jobs.member import nodes_of_ray
    from parenvs.jobs.run import Job, prepared
    from parenvs.view.page import write

    if hasattr(policy_of(policy), "recovery"):
        raise ParenvsError(f"--policy {policy} drives no job, as it does not move the state")
    counts = {"processes": processes, "devices": devices, "batch": batch}
    counts |= {"every": every, "seed": seed + 1}
    for name, value in {**counts, "interval-steps": 1 if steps is None else steps}.items():
        if value < 1:
            raise ParenvsError(f"--{name} must be a whole number from {int(name != 'seed')}")
    for name, rate in (("speed", speed), ("step-seconds", step_seconds)):
        if rate is not None and not SHORTEST <= rate <= 1 / SHORTEST:
            raise ParenvsError(f"--{name} must be from 1e-9 to 1e9, not {rate}")
    job = Job(
        trace, source, policy, processes, devices, batch, interval, speed, steps, step_seconds,
        notice, cluster, every, seed,
    )  # fmt: skip
    if launcher not in ("local", "ray"):
        raise ParenvsError(f"--launcher must be local or ray, not {shown(launcher)}")
    if address is not None and launcher == "local":
        raise ParenvsError("--address is of --launcher ray")
    with ExitStack() as stack:
        where = stack.enter_context(nodes_of_ray(address)) if launcher == "ray" else ()
        with Step("planning the model", 1.0):
            ready = prepared(job, folder)
        happened = ready.driven(say_progress, verify, *where)
    write_text(folder / "run.md", "\n\n".join(happened.markdown()) + "\n")
    write(folder / "run.png", happened.figure)
    if as_json:
        say_json(happened.to_json())
    else:
        say_text("\n\n".join(happened.markdown()))
        say(f"written to {folder}")
