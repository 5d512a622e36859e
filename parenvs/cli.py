"""The ``parenvs`` command."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from parenvs import __version__, tables
from parenvs.cli_options import (
    ClusterText,
    Instance,
    Json,
    MicroBatch,
    PlanOut,
    Plot,
    Seed,
    Stages,
    check_range,
    with_request,
)
from parenvs.errors import InfeasibleError, ParenvsError

if TYPE_CHECKING:
    from parenvs.agents.planners import Request

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Plan the parallel training of neural networks: environments, solvers, agents, a judge.",
)
out = Console(width=None if sys.stdout.isatty() else 110, highlight=False)


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
    from parenvs.agents.planners import PLANNERS

    out.print(tables.instances())
    out.print(tables.clusters())
    out.print("environments: " + ", ".join(tables.environments()))
    out.print("agents:       " + ", ".join(PLANNERS))


@app.command()
def show(
    instance: Instance,
    cluster: ClusterText = "C",
    stages: Stages = None,
    micro_batch: MicroBatch = 16,
) -> None:
    """Show a graph or profile, and its chain of pivots on a cluster."""
    from parenvs.candidates import CutSpace
    from parenvs.cluster import Cluster
    from parenvs.instances import load_graph, load_profile
    from parenvs.pipeline import Pipeline

    devices = Cluster.parse(cluster)
    profile = load_profile(instance, devices, micro_batch)
    if not instance.endswith(".csv"):
        out.print(tables.graph(load_graph(instance)))
    out.print(tables.chain(CutSpace.build(Pipeline(profile, devices), stages)))


@app.command()
@with_request
def plan(
    request: Request,
    agent: Annotated[
        str, typer.Option(help="exact, exact-full, even, pipedream, random or ppo.")
    ] = "exact",
    out_: PlanOut = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Plan a model with one agent, judge the plan, and write or draw it."""
    from parenvs.agents import planners
    from parenvs.judge import judge, make_plan
    from parenvs.viewer import text

    pipeline = request.space.pipeline
    answer = planners.run(agent, request)
    made = make_plan(pipeline, answer.cuts, answer.device_cuts, request.instance)
    report = judge(made, pipeline)
    if as_json:
        sys.stdout.write(json.dumps({"plan": made.to_json(), "report": report.to_json()}) + "\n")
    else:
        out.print(text(pipeline, report, colour=out.is_terminal), markup=False, soft_wrap=True)
        out.print(tables.proof(answer), markup=False)
    if not report.legal:
        raise InfeasibleError(f"the plan of {agent!r} is illegal: {'; '.join(report.reasons)}")
    _write(made, pipeline, report, out_, plot, quiet=as_json)


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
    from parenvs.agents import planners
    from parenvs.judge import Report, judge, make_plan

    agents = agent or ["ppo", "even", "pipedream", "random", "exact", "exact-full"]
    request = dataclasses.replace(request, progress=True)
    pipeline = request.space.pipeline
    rows: list[tuple[Any, Report]] = []
    for name in agents:
        answer = planners.run(name, request)
        made = make_plan(pipeline, answer.cuts, answer.device_cuts, request.instance)
        rows.append((answer, judge(made, pipeline)))
    out.print(tables.comparison(pipeline, rows))
    first = rows[0][1]
    if not first.legal:
        raise InfeasibleError(f"the plan of {agents[0]!r} is illegal: {'; '.join(first.reasons)}")
    _write(first.plan, pipeline, first, out_, plot)


@app.command("judge")
def judge_(
    file: Annotated[Path, typer.Argument(help="A plan file.")],
    instance: Annotated[
        str | None, typer.Option(help="Judge on this instance instead of the plan's own.")
    ] = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Judge a plan file: legality, cost, memory. Exit status 2 if it is illegal."""
    from parenvs.instances import load_profile
    from parenvs.judge import judge
    from parenvs.plan import load_plan
    from parenvs.viewer import text

    made = load_plan(file)
    profile = load_profile(instance or made.instance, made.cluster, made.micro_batch)
    report = judge(made, profile)
    if as_json:
        sys.stdout.write(json.dumps(report.to_json()) + "\n")
    else:
        out.print(
            text(report.pipeline, report, colour=out.is_terminal), markup=False, soft_wrap=True
        )
    _write(made, report.pipeline, report, None, plot, quiet=as_json)
    if not report.legal:
        raise InfeasibleError(f"{file}: illegal: {'; '.join(report.reasons)}")


@app.command()
@with_request
def train(
    request: Request,
    agent: Annotated[str, typer.Option(help="ppo")] = "ppo",
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the run (default: runs/...).")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue the run in the folder.")] = False,
    until_optimal: Annotated[
        bool, typer.Option(help="Stop once the proven optimum of the candidates is reached.")
    ] = False,
) -> None:
    """Train an agent on one instance: checkpoints, logs, the model and its best plan."""
    trainer = _trainer()
    pipeline = request.space.pipeline
    best = _optimum(request.space)
    where = pipeline.cluster.name or f"{pipeline.cluster.devices}-devices"
    place = folder or Path("runs") / f"{pipeline.profile.name}-{where}-{agent}-{request.seed}"
    config = trainer.Config(
        env_kwargs=request.env_kwargs, agent=agent, seed=request.seed, steps=request.steps
    )
    try:
        result, _ = trainer.train(
            config,
            place,
            resume=resume,
            target=best * (1 - tables.OPTIMAL),
            stop_at_target=until_optimal,
            progress=True,
        )
    except KeyboardInterrupt:
        raise ParenvsError(f"interrupted; continue with --resume --out {place}") from None
    out.print(tables.training(result, best, place))


@app.command()
def evaluate(
    folder: Annotated[Path, typer.Argument(help="Folder of a training run.")],
    episodes: Annotated[int, typer.Option(help="Sampled episodes.")] = 100,
    seed: Seed = 0,
) -> None:
    """Evaluate a trained agent with masks: greedy and sampled, against the exact optimum."""
    check_range("--episodes", episodes, 1)
    check_range("--seed", seed, 0)
    _trainer()
    import gymnasium as gym

    from parenvs.agents.evaluate import evaluate_folder
    from parenvs.agents.train import load_config

    config = load_config(folder)
    space = gym.make(config.env_id, **config.env_kwargs).get_wrapper_attr("space")
    best = _optimum(space)
    out.print(tables.evaluation(evaluate_folder(folder, episodes, seed), best))


def _optimum(space: Any) -> float:
    """Value of the best plan among an environment's candidates."""
    from parenvs.agents.exact import exact_pruned
    from parenvs.judge import plan_values

    answer = exact_pruned(space)
    return float(plan_values(space.pipeline, answer.cuts, answer.device_cuts))


def _trainer() -> Any:
    try:
        from parenvs.agents import train as trainer
    except ImportError as error:
        raise ParenvsError(
            f"training needs the extra 'agents' ({error}); pip install 'parenvs[agents]'"
        ) from None
    return trainer


def _write(
    made: Any,
    pipeline: Any,
    report: Any,
    path: Path | None,
    plot: Path | None,
    quiet: bool = False,
) -> None:
    """Write what was asked for; ``quiet`` keeps standard output for the JSON on it."""
    if path is not None:
        made.save(path)
        if not quiet:
            out.print(f"plan written to {path}", markup=False, soft_wrap=True)
    if plot is not None:
        from parenvs import viewer

        viewer.save(plot, pipeline, report)
        if not quiet:
            out.print(f"picture written to {plot}", markup=False, soft_wrap=True)


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
