"""The command ``parenvs elastic compare``: policies on nodes that come and go, side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from parenvs.agents.names import POLICIES
from parenvs.errors import ParenvsError
from parenvs.view.commands import of
from parenvs.view.terminal import (
    Json,
    Plot,
    Seed,
    Step,
    files_of,
    out,
    print_report,
    say_json,
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
    from parenvs.tasks.elastic.problems import load_elastic

    if seed < 0:
        raise ParenvsError(f"--seed must be a whole number from 0, not {seed}")
    with Step("making the candidate plans and what they cost"):
        problem = load_elastic(trace, model, interval, cluster, batch)
    course = problem.drawn(seed)
    runs: list[Run] = []
    for policy in [*_policies(problem, policies or ["look-ahead"]), None]:
        with Step(f"{'hindsight' if policy is None else policy.name} on {problem.name}", 1.0):
            runs.append(_hindsight(problem, seed) if policy is None else
                        play(problem, course, policy))  # fmt: skip
    work, lines = files_of(runs[-2], plot=plot)
    with written(work, *lines, quiet=as_json):
        if as_json:
            say_json({"runs": [run.to_json() for run in runs]})
        else:
            out.print(_table(runs))
            print_report(runs[-2])


def _policies(problem: Elastic, names: list[str]) -> list[Policy]:
    """Return the policies of some names, those of ``all`` for it.

    Raises:
        ParenvsError: a name is unknown.
    """
    from parenvs.agents.elastic.planners import policy_of
    from parenvs.agents.elastic.policies import POLICIES, optimal
    from parenvs.agents.names import LEARNED
    from parenvs.tasks.elastic.problems import Markov

    is_chain = isinstance(problem.source, Markov)
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


def _hindsight(problem: Elastic, seed: int) -> Run:
    """Return the hindsight optimum of a seed's course."""
    from parenvs.tasks.elastic.problem import hindsight

    return hindsight(problem, problem.drawn(seed))


def _table(runs: list[Run]) -> Table:
    """Return what policies earned, the hindsight optimum last."""
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
