"""The ``parenvs`` command."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parenvs import __version__
from parenvs.cli import tables
from parenvs.cli.bench import add_bench
from parenvs.cli.leaderboard import add_leaderboard
from parenvs.cli.options import (
    ClusterText,
    Instance,
    Json,
    MicroBatch,
    OtherInstance,
    PlanFile,
    PlanOut,
    Plot,
    Stages,
    with_request,
)
from parenvs.cli.report import out, print_report, proof, refuse_illegal, say, say_json, write
from parenvs.cli.train import add_training
from parenvs.errors import InfeasibleError, ParenvsError

if TYPE_CHECKING:
    from parenvs.agents.planners import Request

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Plan the parallel training of neural networks: environments, solvers, agents, a judge.",
)


def _version(value: bool) -> None:
    if value:
        out.print(f"parenvs {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command("list")
def list_() -> None:
    """List shipped instances, clusters, environments and agents."""
    from parenvs.agents.planners import PARTITION_PLANNERS, PIPELINE_PLANNERS

    out.print(tables.instances())
    out.print(tables.clusters())
    out.print("environments: " + ", ".join(_environments()))
    out.print("agents of pipelines:  " + ", ".join(PIPELINE_PLANNERS))
    out.print("agents of partitions: " + ", ".join(PARTITION_PLANNERS))


def _environments() -> list[str]:
    """Ids of the suite's environments."""
    import gymnasium as gym

    return sorted(
        name for name, spec in gym.registry.items() if str(spec.entry_point).startswith("parenvs.")
    )


@app.command()
def show(
    instance: Instance,
    cluster: ClusterText = None,
    stages: Stages = None,
    micro_batch: MicroBatch = None,
) -> None:
    """Show a graph or profile: its chain of pivots on a cluster, and its dimension classes."""
    from parenvs.instances import load_graph, load_partitioning, problem
    from parenvs.pipeline.cuts import CutSpace

    options = {"stages": stages, "micro_batch": micro_batch}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    pipeline = problem(instance, cluster, **given)
    devices = pipeline.cluster
    graph = None if instance.endswith(".csv") else load_graph(instance)
    if graph is not None:
        out.print(tables.graph(graph))
    out.print(tables.chain(CutSpace.build(pipeline)))
    if graph is not None and len(graph.variables) and devices.devices > 1:
        out.print(tables.classes(load_partitioning(instance, devices)))


@app.command()
@with_request
def plan(
    request: Request,
    agent: Annotated[
        str, typer.Option(help="exact, random, ppo, ... (parenvs list shows all).")
    ] = "exact",
    refine: Annotated[
        bool, typer.Option("--refine", help="Search around the answer of agent pretrained.")
    ] = False,
    out_: PlanOut = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Plan a model with one agent, judge the plan, and write or draw it."""
    if refine:
        agent = _refined(agent)
    answer = request.run(agent)
    report = answer.report
    gaps = _gaps(request, answer)
    if as_json:
        content = {"plan": report.plan.to_json(), "report": report.to_json()}
        if gaps:
            content["gaps"] = [dataclasses.asdict(gap) for gap in gaps]
        sys.stdout.write(json.dumps(content) + "\n")
    else:
        print_report(report)
        out.print(proof(answer), markup=False)
        for gap in gaps:
            out.print(gap.text(), markup=False, soft_wrap=True)
    refuse_illegal(report, f"the plan of {agent!r} is illegal")
    write(report, out_, plot, quiet=as_json)


@app.command()
@with_request
def compare(
    request: Request,
    agent: Annotated[
        list[str] | None,
        typer.Option(help="Agents to compare, again for each; --out and --plot take the first's."),
    ] = None,
    out_: PlanOut = None,
    plot: Plot = None,
) -> None:
    """Plan a model with several agents and print them side by side."""
    request = dataclasses.replace(request, progress=True)
    rows: list[tuple[Any, Any]] = []
    for name in agent or request.compared:
        try:
            answer = request.run(name)
        except InfeasibleError as error:
            if agent:  # asked for by name
                raise
            out.print(f"{name}: {error}", markup=False)
            continue
        rows.append((answer, answer.report))
    out.print(tables.comparison(rows))
    first = rows[0][1]
    refuse_illegal(first, f"the plan of {rows[0][0].method!r} is illegal")
    write(first, out_, plot)


@app.command("judge")
def judge_(
    file: PlanFile,
    instance: OtherInstance = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Judge a plan file: legality, cost, memory. Exit status 2 if it is illegal."""
    report = _judged(file, instance)
    if as_json:
        sys.stdout.write(json.dumps(report.to_json()) + "\n")
    else:
        print_report(report)
    write(report, None, plot, quiet=as_json)
    refuse_illegal(report, f"{file}: illegal")


@app.command()
def diff(
    old: Annotated[Path, typer.Argument(metavar="A", help="A plan file.")],
    new: Annotated[
        Path, typer.Argument(metavar="B", help="Another plan file of the same problem.")
    ],
    instance: OtherInstance = None,
    as_json: Json = False,
) -> None:
    """Tell what two plans of one problem decide differently, and what that costs, part by part.

    Differences are B less A. Illegal plans are compared, too.
    """
    from parenvs.diff import difference, require_same_problem
    from parenvs.plan import load_plan
    from parenvs.viewer.diff_text import text

    names = (str(old), str(new))
    require_same_problem(load_plan(old), load_plan(new), names)
    found = difference(_judged(old, instance), _judged(new, instance))
    if as_json:
        say_json(found.to_json())
    else:
        say(text(found, names))


@app.command()
def explain(
    file: PlanFile,
    variable: Annotated[
        str | None, typer.Option(help="Glob over paths (default: all, equal layers together).")
    ] = None,
    instance: OtherInstance = None,
) -> None:
    """Tell for each variable of a partition plan why it is partitioned or not."""
    from parenvs.partitioning.problem import PartitionReport
    from parenvs.viewer.partition_explanation import explain as explained
    from parenvs.viewer.partition_explanation import explanation_text

    report = _judged(file, instance)
    if not isinstance(report, PartitionReport):
        raise ParenvsError(f"{file}: explain takes plans of partitions, not {report.plan.task}")
    words = explanation_text(explained(report, variable))
    out.print(words, markup=False, soft_wrap=True)
    refuse_illegal(report, f"{file}: illegal")


@app.command()
def verify(
    file: PlanFile,
    module: Annotated[
        str | None,
        typer.Option(help="HLO of the graph (.pb, .txt), if the plan's instance is no such file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a partition plan against XLA's own partitioner (extra jax). Status 2 if they differ."""
    from parenvs.plan import PartitionPlan, load_plan
    from parenvs.shardy.verify import verify_plan

    made = load_plan(file)
    if not isinstance(made, PartitionPlan):
        raise ParenvsError(f"{file}: verify takes plans of partitions, not {made.task}")
    found = verify_plan(made, module)
    if as_json:
        sys.stdout.write(json.dumps(found.to_json()) + "\n")
    else:
        out.print(found.text(), markup=False, soft_wrap=True)
    if not found.agrees:
        raise ParenvsError(f"{file}: XLA's partitioner disagrees or has to reshard")
    if not found.legal:
        raise InfeasibleError(f"{file}: illegal; parenvs judge gives the reasons")


def _refined(agent: str) -> str:
    """The planner that searches around the answer of this one."""
    from parenvs.agents.names import GENERAL, REFINED

    if agent not in GENERAL:
        raise ParenvsError(f"--refine is an option of --agent {GENERAL[0]}, not of {agent!r}")
    return REFINED


def _gaps(request: Request, answer: Any) -> list[Any]:
    """What a planner that proves nothing and was trained on other problems may have missed."""
    from parenvs.agents.names import GENERAL
    from parenvs.agents.planners import PipelineRequest
    from parenvs.agents.pretrained.planner import gaps

    if not isinstance(request, PipelineRequest) or answer.method not in GENERAL:
        return []
    return gaps(request.points, answer)


def _judged(file: Path, instance: str | None) -> Any:
    """What the judge says of a plan file, on its own instance or another."""
    from parenvs.instances import load_graph, load_profile
    from parenvs.judging import judge
    from parenvs.plan import PipelinePlan, load_plan

    made: Any = load_plan(file)
    if instance is None:
        return judge(made)
    if isinstance(made, PipelinePlan):
        return judge(made, load_profile(instance, made.cluster, made.micro_batch))
    return judge(made, load_graph(instance))


add_training(app)
add_bench(app)
add_leaderboard(app)


def main() -> None:
    """Run the command; bad input ends with one line and exit status 2."""
    try:
        app()
    except BrokenPipeError:
        sys.exit(1)
    except (ParenvsError, OSError) as error:
        sys.stderr.write(f"parenvs: {' '.join(str(error).splitlines())}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
