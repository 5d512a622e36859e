"""The ``parenvs`` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from parenvs import __version__
from parenvs.cli import tables
from parenvs.cli.bench import add_bench
from parenvs.cli.elastic import add_elastic
from parenvs.cli.help import add_doctor, add_examples
from parenvs.cli.iopddl import add_iopddl
from parenvs.cli.leaderboard import add_leaderboard
from parenvs.cli.model import Model, reading
from parenvs.cli.options import (
    Batch,
    ClusterText,
    Devices,
    Frozen,
    FunctionArguments,
    Instance,
    Json,
    MicroBatch,
    OtherInstance,
    PlanFile,
    Plot,
    Rules,
    Uneven,
    Variables,
    given,
)
from parenvs.cli.planning import add_planning
from parenvs.cli.report import (
    note,
    out,
    print_report,
    printable_usage,
    refuse_illegal,
    say,
    say_json,
    say_progress,
    say_text,
    warnings_as_notes,
    write,
)
from parenvs.cli.train import add_training
from parenvs.errors import InfeasibleError, ParenvsError, PlanError, UnknownInstanceError


class _Commands(TyperGroup):
    """Commands whose usage errors show as text what was typed."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse the arguments."""
        with printable_usage():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        """Run the command, which parses its own arguments."""
        with printable_usage():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Plan the parallel training of neural networks: environments, solvers, agents, a judge.",
    epilog="Example:\n\n$ parenvs plan t5-base --cluster C --out plan.json",
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
    from parenvs.agents.elastic.rules import RULES
    from parenvs.agents.hybrid.planners import HYBRID_PLANNERS
    from parenvs.agents.order.planners import ORDER_PLANNERS
    from parenvs.agents.partition.planners import PARTITION_PLANNERS
    from parenvs.agents.pipeline.planners import PIPELINE_PLANNERS
    from parenvs.datasets.sharding import drawing as intra_op
    from parenvs.tasks.elastic.load import ELASTIC_SETS, TRACES
    from parenvs.tasks.hybrid.shipped import shapes
    from parenvs.tasks.order.load import ORDER_SETS
    from parenvs.tasks.partition.sets import PARTITION_SETS

    out.print(tables.instances())
    out.print(tables.clusters())
    say("environments: " + ", ".join(_environments()))
    say("agents of pipelines:  " + ", ".join(PIPELINE_PLANNERS))
    say("agents of partitions: " + ", ".join(PARTITION_PLANNERS))
    say("sets of partitions: " + ", ".join(PARTITION_SETS) + " (partition-test/t5-000, ...)")
    say("sets of shardings: " + ", ".join(intra_op.SETS) + " (intra-op-test/mesh-000, ...)")
    say("shapes of hybrid plans: " + ", ".join(shapes()))
    say("agents of hybrid plans: " + ", ".join(HYBRID_PLANNERS))
    say("sets of orders: " + ", ".join(ORDER_SETS) + " (order-test/p8-m16-000, ...)")
    say("agents of orders: " + ", ".join(ORDER_PLANNERS))
    say("traces of nodes: " + ", ".join(TRACES) + "; sets of chains: " + ", ".join(ELASTIC_SETS))
    say("policies on them: " + ", ".join([*RULES, "optimal"]))


def _environments() -> list[str]:
    """Return the ids of the suite's environments."""
    import gymnasium as gym

    return sorted(
        name for name, spec in gym.registry.items() if str(spec.entry_point).startswith("parenvs.")
    )


@app.command()
def show(
    instance: Instance,
    arguments: FunctionArguments = None,
    variables: Variables = None,
    batch: Batch = None,
    frozen: Frozen = None,
    cluster: ClusterText = None,
    stages: Annotated[
        int | None, typer.Option(help="Pipeline stages (default: one a server).")
    ] = None,
    micro_batch: MicroBatch = None,
) -> None:
    """Show a graph or profile: its inputs, its chain on a cluster, and its dimension classes."""
    from parenvs.core.problem import problem
    from parenvs.tasks.partition.load import load_partitioning
    from parenvs.tasks.pipeline.problem import stages_on

    model = _model(instance, arguments, variables, batch, frozen)
    options: dict[str, Any] = {} if micro_batch is None else {"micro_batch": micro_batch}
    # Any chain can be shown, even one that the default number of stages does not fit.
    pipeline = problem(
        instance, cluster, stages=1 if stages is None else stages, **options, **model.options
    )
    if stages is None:
        pipeline = pipeline.with_stages(stages_on(pipeline.cluster))
    if not model.is_profile:
        graph = model.read()
        out.print(tables.graph(graph))
        out.print(tables.parameters(graph))
    out.print(tables.chain(pipeline))
    if not model.is_profile and len(graph.weights) and pipeline.cluster.devices > 1:
        out.print(tables.classes(load_partitioning(instance, pipeline.cluster, **model.options)))


@app.command("judge")
def judge_(
    file: PlanFile,
    instance: OtherInstance = None,
    arguments: FunctionArguments = None,
    variables: Variables = None,
    batch: Batch = None,
    frozen: Frozen = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Judge a plan file: legality, cost, memory. Exit status 2 if it is illegal."""
    model = _model(instance, arguments, variables, batch, frozen)
    report = _judged(file, model)
    if as_json:
        say_json(report.to_json())
    else:
        print_report(report)
    write(report, plot=plot, quiet=as_json)
    refuse_illegal(report, f"{file}: illegal")


@app.command()
def diff(
    old: Annotated[Path, typer.Argument(metavar="A", help="A plan file.")],
    new: Annotated[
        Path, typer.Argument(metavar="B", help="Another plan file of the same problem.")
    ],
    instance: OtherInstance = None,
    arguments: FunctionArguments = None,
    variables: Variables = None,
    batch: Batch = None,
    frozen: Frozen = None,
    as_json: Json = False,
) -> None:
    """Tell what two plans of one problem decide differently, and what that costs, part by part.

    Differences are B less A. Illegal plans are compared, too.
    """
    from parenvs.core.plan import load_plan
    from parenvs.diff import difference, require_same_problem
    from parenvs.view.diff_text import text

    names = (str(old), str(new))
    require_same_problem(load_plan(old), load_plan(new), names)
    model = _model(instance, arguments, variables, batch, frozen)
    plan_difference = difference(_judged(old, model), _judged(new, model))
    if as_json:
        say_json(plan_difference.to_json())
    else:
        say_text(text(plan_difference, names))


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
    arguments: FunctionArguments = None,
    variables: Variables = None,
    batch: Batch = None,
    frozen: Frozen = None,
    cluster: ClusterText = None,
    devices: Devices = None,
    rules: Rules = None,
    uneven: Uneven = None,
) -> None:
    """Tell why each variable of a plan is partitioned or not; of an instance, what plans may do.

    Of an instance: what is tied together, what blocks what, and what excludes what. Of a hybrid
    plan: what other values on each axis would cost.
    """
    from parenvs.core.problem import problem
    from parenvs.tasks.hybrid.report import HybridReport
    from parenvs.tasks.partition.plan import PartitionPlan
    from parenvs.tasks.partition.problem import PartitionReport
    from parenvs.tasks.partition.view.explanation import explain as explained
    from parenvs.tasks.partition.view.explanation import explanation_text, problem_text

    options = given(devices=devices, rules=rules, uneven=uneven)
    if not target.endswith(".json"):
        if instance is not None:
            raise ParenvsError("--instance is an option for plan files; give the instance alone")
        model = _model(target, arguments, variables, batch, frozen)
        asked = problem(target, cluster, PartitionPlan.task, **options, **model.options)
        say_text(problem_text(asked, variable))
        return
    for name in given(cluster=cluster, **options):
        raise ParenvsError(f"--{name} is an option for instances; {target} is a plan with its own")
    report = _judged(Path(target), _model(instance, arguments, variables, batch, frozen))
    if isinstance(report, HybridReport):
        _explain_hybrid(report, variable)
        refuse_illegal(report, f"{target}: illegal")
        return
    if not isinstance(report, PartitionReport):
        raise ParenvsError(f"{target}: explain takes plans of partitions, not {report.plan.task}")
    say_text(explanation_text(explained(report, variable)))
    refuse_illegal(report, f"{target}: illegal")


@app.command()
def verify(
    file: PlanFile,
    module: Annotated[
        str | None,
        typer.Option(help="HLO of the graph (.pb, .txt), if the plan's instance is no such file."),
    ] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the step on virtual devices, and count.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a partition plan against XLA's own partitioner (extra jax). Status 2 if they differ.

    With --compile, XLA compiles the step ahead of time, of hybrid plans of one stage too: shardings
    kept, collectives and memory beside the judge's.
    """
    from parenvs.core.plan import load_plan
    from parenvs.shardy.verify import verify_plan
    from parenvs.tasks.partition.plan import PartitionPlan

    partition_plan = load_plan(file)
    if compiled:
        _verify_compiled(partition_plan, file, module, as_json)
        return
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


def _verify_compiled(plan: Any, file: Path, module: str | None, as_json: bool) -> None:
    """Compile a plan's step on virtual devices, and print what XLA makes of it.

    Raises:
        ParenvsError: XLA shards it otherwise, or communicates more than the judge predicts.
    """
    from parenvs.exports.compilation import compile_plan

    compilation = compile_plan(plan, module)
    if as_json:
        say_json(compilation.to_json())
    else:
        say(compilation.text())
    if not compilation.agrees:
        raise ParenvsError(f"{file}: XLA shards it otherwise, or communicates other than predicted")


@app.command()
def export(
    file: PlanFile,
    to: Annotated[str, typer.Option(help="jax, torch, megatron, torchtitan or deepspeed.")],
    path: Annotated[
        Path | None, typer.Option("--out", help="Write to this file instead of standard output.")
    ] = None,
) -> None:
    """Write a plan in the words of a framework that runs it."""
    from parenvs.core.plan import load_plan
    from parenvs.exports.formats import exported
    from parenvs.files import write_text

    result = exported(load_plan(file), to)
    for words in result.notes:
        note(words)
    if path is None:
        say_text(result.text.rstrip("\n"))
        return
    write_text(path, result.text)
    say(f"written to {path}")


def _explain_hybrid(report: Any, variable: str | None) -> None:
    """Print what other values on each axis of a hybrid plan would cost."""
    from parenvs.tasks.hybrid.space.explain import alternatives, space_of
    from parenvs.tasks.hybrid.view.explanation import explanation_text

    if variable is not None:
        raise ParenvsError("--variable is an option for plans of partitions")
    found = alternatives(report, space_of(report)) if report.stages else []
    say_text(explanation_text(report, found))


def _model(
    instance: str | None,
    arguments: str | None,
    variables: list[str] | None,
    batch: list[str] | None,
    frozen: list[str] | None,
) -> Model:
    """Return the model of a command line; without an instance, that of a plan is meant."""
    options = {**given(arguments=arguments), **reading(variables, batch, frozen)}
    return Model(instance or "", options)


def _judged(file: Path, model: Model) -> Any:
    """Judge a plan file on the model, or on its own instance if the model names none."""
    from parenvs.core.judge import judge
    from parenvs.core.plan import load_plan
    from parenvs.instances import load_graph
    from parenvs.tasks.hybrid.load import load_model
    from parenvs.tasks.hybrid.plan import HybridPlan
    from parenvs.tasks.order.load import load_ordering
    from parenvs.tasks.order.plan import OrderPlan
    from parenvs.tasks.pipeline.load import load_profile
    from parenvs.tasks.pipeline.plan import PipelinePlan
    from parenvs.tasks.sharding.plan import ShardingPlan

    judged_plan: Any = load_plan(file)
    if isinstance(judged_plan, ShardingPlan):
        raise ParenvsError(f"{file}: a plan of strategies; parenvs iopddl judge {file} judges it")
    if not (model.instance or model.options):
        try:
            return judge(judged_plan)
        except UnknownInstanceError as error:
            raise UnknownInstanceError(f"{file}: field 'instance': {error}") from None
        except PlanError as error:
            raise PlanError(f"{file}: {error}") from None
    instance = model.instance or judged_plan.instance
    if isinstance(judged_plan, PipelinePlan):
        cluster, micro_batch = judged_plan.cluster, judged_plan.micro_batch
        return judge(judged_plan, load_profile(instance, cluster, micro_batch, **model.options))
    if isinstance(judged_plan, HybridPlan):
        return judge(judged_plan, load_model(instance, **model.options))
    if isinstance(judged_plan, OrderPlan):
        for name in model.options:
            raise ParenvsError(f"--{name} is not an option of plans of task {judged_plan.task}")
        return judge(judged_plan, load_ordering(instance))
    return judge(judged_plan, load_graph(instance, **model.options))


add_planning(app)
add_training(app)
add_bench(app)
add_leaderboard(app)
add_elastic(app)
add_iopddl(app)
add_doctor(app)
add_examples(app)


def main() -> None:
    """Run the command; bad input ends with one line and exit status 2."""
    try:
        with warnings_as_notes():
            app()
    except BrokenPipeError:
        sys.exit(1)
    except (ParenvsError, OSError) as error:
        say_progress(f"parenvs: {' '.join(str(error).splitlines())}")
        sys.exit(2)


if __name__ == "__main__":
    main()
