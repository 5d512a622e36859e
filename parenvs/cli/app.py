"""The ``parenvs`` command."""

from __future__ import annotations

import dataclasses
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
    Devices,
    Instance,
    Json,
    MicroBatch,
    OtherInstance,
    PlanFile,
    PlanOut,
    Plot,
    Rules,
    Stages,
    Uneven,
    given,
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


def _version(wanted: bool) -> None:
    """Print the version and end, if the option ``--version`` is given."""
    if wanted:
        say(f"parenvs {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Carry the options that stand before a command's name."""


@app.command("list")
def list_() -> None:
    """List shipped instances, clusters, environments and agents."""
    from parenvs.agents.planners import PARTITION_PLANNERS, PIPELINE_PLANNERS

    out.print(tables.instances())
    out.print(tables.clusters())
    say("environments: " + ", ".join(_environments()))
    say("agents of pipelines:  " + ", ".join(PIPELINE_PLANNERS))
    say("agents of partitions: " + ", ".join(PARTITION_PLANNERS))


def _environments() -> list[str]:
    """Return the ids of the suite's environments."""
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

    options: dict[str, Any] = {}
    if stages is not None:
        options["stages"] = stages
    if micro_batch is not None:
        options["micro_batch"] = micro_batch
    pipeline = problem(instance, cluster, **options)
    graph = None if instance.endswith(".csv") else load_graph(instance)
    if graph is not None:
        out.print(tables.graph(graph))
    out.print(tables.chain(CutSpace.build(pipeline)))
    if graph is not None and len(graph.variables) and pipeline.cluster.devices > 1:
        out.print(tables.classes(load_partitioning(instance, pipeline.cluster)))


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
        if answer.notes:
            content["notes"] = list(answer.notes)
        say_json(content)
    else:
        print_report(report)
        say(proof(answer))
        for note in answer.notes:
            say(note)
        for gap in gaps:
            say(gap.text())
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
            if agent:  # the user named this agent, so its failure is the command's
                raise
            say(f"{name}: {error}")
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
        say_json(report.to_json())
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
    plan_difference = difference(_judged(old, instance), _judged(new, instance))
    if as_json:
        say_json(plan_difference.to_json())
    else:
        say(text(plan_difference, names))


@app.command()
def explain(
    target: Annotated[
        str,
        typer.Argument(metavar="PLAN|INSTANCE", help="A plan file (.json), a name or a graph."),
    ],
    variable: Annotated[
        str | None, typer.Option(help="Glob over paths (default: all, equal layers together).")
    ] = None,
    instance: OtherInstance = None,
    cluster: ClusterText = None,
    devices: Devices = None,
    rules: Rules = None,
    uneven: Uneven = None,
) -> None:
    """Tell why each variable of a plan is partitioned or not; of an instance, what plans may do.

    Of an instance: what is tied together, what blocks what, and what excludes what.
    """
    from parenvs.instances import problem
    from parenvs.partitioning.problem import PartitionReport
    from parenvs.plan import PartitionPlan
    from parenvs.viewer.partition_explanation import explain as explained
    from parenvs.viewer.partition_explanation import explanation_text, problem_text

    options = given(devices=devices, rules=rules, uneven=uneven)
    if not target.endswith(".json"):
        if instance is not None:
            raise ParenvsError("--instance is an option for plan files; give the instance alone")
        say(problem_text(problem(target, cluster, PartitionPlan.task, **options), variable))
        return
    for name in given(cluster=cluster, **options):
        raise ParenvsError(f"--{name} is an option for instances; {target} is a plan with its own")
    report = _judged(Path(target), instance)
    if not isinstance(report, PartitionReport):
        raise ParenvsError(f"{target}: explain takes plans of partitions, not {report.plan.task}")
    say(explanation_text(explained(report, variable)))
    refuse_illegal(report, f"{target}: illegal")


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

    partition_plan = load_plan(file)
    if not isinstance(partition_plan, PartitionPlan):
        raise ParenvsError(f"{file}: verify takes plans of partitions, not {partition_plan.task}")
    verification = verify_plan(partition_plan, module)
    if as_json:
        say_json(verification.to_json())
    else:
        say(verification.text())
    if not verification.agrees:
        raise ParenvsError(f"{file}: XLA's partitioner disagrees or has to reshard")
    if not verification.legal:
        raise InfeasibleError(f"{file}: illegal; parenvs judge gives the reasons")


def _refined(agent: str) -> str:
    """Return the planner that searches around the answer of planner ``agent``."""
    from parenvs.agents.names import GENERAL, REFINED

    if agent not in GENERAL:
        raise ParenvsError(f"--refine is an option of --agent {GENERAL[0]}, not of {agent!r}")
    return REFINED


def _gaps(request: Request, answer: Any) -> list[Any]:
    """Return the gaps to the optimum of an answer whose planner was trained on other problems."""
    from parenvs.agents.names import GENERAL
    from parenvs.agents.planners import PipelineRequest
    from parenvs.agents.pretrained.planner import gaps

    if not isinstance(request, PipelineRequest) or answer.method not in GENERAL:
        return []
    return gaps(request.points, answer)


def _judged(file: Path, instance: str | None) -> Any:
    """Judge a plan file on its own instance, or on ``instance`` if one is given."""
    from parenvs.instances import load_graph, load_profile
    from parenvs.judging import judge
    from parenvs.plan import PipelinePlan, load_plan

    judged_plan: Any = load_plan(file)
    if instance is None:
        return judge(judged_plan)
    if isinstance(judged_plan, PipelinePlan):
        profile = load_profile(instance, judged_plan.cluster, judged_plan.micro_batch)
        return judge(judged_plan, profile)
    return judge(judged_plan, load_graph(instance))


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
