"""Defines the options that several commands share, and reads the problem that they describe."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parenvs.cli import hybrid
from parenvs.cli.model import Model, reading
from parenvs.cluster import Cluster
from parenvs.core.registry import remedy
from parenvs.core.request import STEPS
from parenvs.errors import ParenvsError
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.order.plan import OrderPlan
from parenvs.tasks.partition.plan import PartitionPlan
from parenvs.tasks.partition.step import DEVICE
from parenvs.tasks.pipeline.plan import PipelinePlan

if TYPE_CHECKING:
    from parenvs.core.request import Request

Instance = Annotated[
    str,
    typer.Argument(help="Shipped name, path of a graph or .csv profile, or FILE.py:FUNCTION."),
]
FunctionArguments = Annotated[
    str | None,
    typer.Option(
        "--args", help="What gives a function's arguments: NAME in its file, or FILE.py:NAME."
    ),
]
Variables = Annotated[
    list[str] | None,
    typer.Option(help="Glob over paths, or argument's index: the trainable variables; again."),
]
Batch = Annotated[
    list[str] | None, typer.Option(help="The same: inputs whose first dimension is the batch.")
]
Frozen = Annotated[list[str] | None, typer.Option(help="The same: weights that are not trained.")]
TASKS = (PipelinePlan.task, PartitionPlan.task)
"""Tasks of graphs that plan one axis, whose agents train on one problem."""
_KNOWN = ", ".join(TASKS)
DRAWN = ("pipeline-plan", "hybrid", "hetero", "order", "partition-plan", "sharding")
"""Tasks of ``train`` that need no model: by default problems are drawn."""
ClusterText = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Preset, '4x8:v100,25Gbps', or a .json file (default: C for pipelines, 1x8:v100).",
    ),
]
Devices = Annotated[
    int | None, typer.Option(help="One server of this many V100, instead of --cluster.")
]
Scope = Annotated[
    str | None, typer.Option(help="What partitions decide: variables (default) or inputs.")
]
Rules = Annotated[str | None, typer.Option(help="shardy (default) or automap.")]
Uneven = Annotated[str | None, typer.Option(help="pad (default) or forbid.")]
Stages = Annotated[
    int | None,
    typer.Option(help="Pipeline stages (default: chosen, with the devices; train: one a server)."),
]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
MicroBatch = Annotated[
    int | None,
    typer.Option(help="Samples in a micro-batch (default: 16; partitions: the graph's batch)."),
]
Word = Annotated[
    str,
    typer.Option(
        "--distribution", help="How ppo is spread: single, actors, learners, async or fused."
    ),
]
Actors = Annotated[
    int | None, typer.Option(help="Processes that play (actors, async; default: 2).")
]
Learners = Annotated[int | None, typer.Option(help="Processes that learn (learners: 2, async: 1).")]
Address = Annotated[
    str | None,
    typer.Option(help="HOST:PORT of a cluster of Ray, or auto (default: Ray on this machine)."),
]
Engine = Annotated[
    str, typer.Option(help="Where independent runs are performed: local, or ray, as its tasks.")
]
PlanFile = Annotated[Path, typer.Argument(help="A plan file.")]
OtherInstance = Annotated[
    str | None, typer.Option("--instance", help="Judge on this instance instead of the plan's own.")
]
PlanOut = Annotated[Path | None, typer.Option("--out", help="Write the plan to this .json file.")]
Plot = Annotated[
    Path | None,
    typer.Option(callback=lambda path: _picture(path), help="Draw the plan (.png, .svg, .pdf)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def read_request(
    choosing: bool,
    instance: Instance,
    arguments: FunctionArguments = None,
    variables: Variables = None,
    batch: Batch = None,
    frozen: Frozen = None,
    task: Annotated[
        str, typer.Option(help=f"What to plan: {_KNOWN}; train also: {', '.join(DRAWN)}.")
    ] = TASKS[0],
    cluster: ClusterText = None,
    devices: Devices = None,
    seed: Seed = 0,
    steps: Annotated[
        int, typer.Option(help="Environment steps of agents that learn or draw.")
    ] = STEPS,
    stages: Stages = None,
    devices_used: Annotated[
        int | None,
        typer.Option(help="Devices that a pipeline uses (default: chosen; all with --stages)."),
    ] = None,
    micro_batch: MicroBatch = None,
    micro_batches: Annotated[
        int | None, typer.Option(help="Micro-batches in a step (default: 16; partitions: 1).")
    ] = None,
    copies: Annotated[
        float | None, typer.Option(help="Copies of the parameters on a device (default: 2).")
    ] = None,
    recompute: Annotated[
        str | None,
        typer.Option(help="Activations recomputed: full (default of pipelines) or none."),
    ] = None,
    sync: Annotated[
        str | None,
        typer.Option(help="allreduce (default), parameter-server or sharded-parameter-server."),
    ] = None,
    tied: Annotated[
        str | None,
        typer.Option(help="Tied weights: held by all that read them, or once (shipped models)."),
    ] = None,
    radius: Annotated[
        int | None,
        typer.Option(help="Distance of device cuts from the centre solution (default: 3)."),
    ] = None,
    candidates: Annotated[
        str | None, typer.Option(help="Pivots that may be cut: minima (default) or all.")
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(help="Seconds of each search of exact agents (exact: 20, others: no limit)."),
    ] = None,
    scope: Scope = None,
    rules: Rules = None,
    uneven: Uneven = None,
    reward: Annotated[
        str | None, typer.Option(help="step_time (default; of train: paper) or paper.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="Of products: fp32, tf32, ... (default: the elements'; fp32 as TF32)."),
    ] = None,
    stack: hybrid.Stack = None,
    tp: hybrid.TensorRanks = None,
    dp: hybrid.Replicas = None,
    chunks: hybrid.Chunks = None,
    context: hybrid.Context = None,
    expert: hybrid.Expert = None,
    zero: hybrid.Zero = None,
    most_micro_batch: hybrid.MostMicroBatch = None,
    pin: hybrid.PinnedLayers = None,
    idle: hybrid.Idle = False,
    objective: hybrid.ObjectiveName = None,
    price: hybrid.Price = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(help="Of partitions: GB a device, or 'device' for 0.9 of its own memory."),
    ] = None,
) -> tuple[Request, Model]:
    """Read the problem of a command and how to solve it, as planners take them.

    ``choosing`` leaves the stages and devices of a pipeline open unless they are given, and makes
    ``step_time`` the reward of a partition; without it, both are the environment's own.
    """
    check_range("--steps", steps, 1)
    if micro_batch is not None:
        check_range("--micro-batch", micro_batch, 1)
    check_range("--seed", seed, 0)
    from parenvs.agents.planners import request_of
    from parenvs.core.problem import problem
    from parenvs.core.registry import TASKS as REGISTRY

    hybrid_options = given(
        tp=tp, dp=dp, chunks=chunks, context=context, expert=expert, zero=zero,
        most_micro_batch=most_micro_batch, pinned=pin, idle=idle or None,
    )  # fmt: skip
    goal = given(objective=objective, price=price)
    if task == OrderPlan.task:
        refused = given(
            args=arguments, variables=variables, batch=batch, frozen=frozen, cluster=cluster,
            devices=devices, stages=stages, devices_used=devices_used, micro_batch=micro_batch,
            micro_batches=micro_batches, copies=copies, recompute=recompute, sync=sync, tied=tied,
            radius=radius, candidates=candidates, scope=scope, rules=rules, uneven=uneven,
            reward=reward, precision=precision, stack=stack, memory_limit=memory_limit, **hybrid_options, **goal,
        )  # fmt: skip
        for name in refused:
            raise ParenvsError(f"{_option(name)} is not an option of --task {task}")
        limits = given(time_limit=time_limit)
        found = problem(instance, task=task)
        return request_of(found, seed=seed, steps=steps, **limits), Model(instance, task=task)
    if task == HybridPlan.task:
        for name, value in given(
            copies=copies, sync=sync, tied=tied, micro_batches=micro_batches, radius=radius,
            candidates=candidates, scope=scope, rules=rules, uneven=uneven, reward=reward,
            devices=devices, memory_limit=memory_limit,
        ).items():  # fmt: skip
            raise ParenvsError(f"{_option(name)} {value} is not an option of --task {task}")
        shared = given(pp=stages, devices=devices_used, micro_batch=micro_batch)
        limits = {**hybrid_options, **shared, **given(recompute=recompute)}
        model = Model(
            instance, {**given(arguments=arguments), **reading(variables, None, frozen)}, task
        )
        model.tell()
        planned = problem(
            instance, cluster, task, precision=precision, batch=hybrid.samples_of(batch),
            **given(stack=stack), **model.options,
        )  # fmt: skip
        options = given(time_limit=time_limit)
        constraints = hybrid.constraints_of(**limits)
        return request_of(
            planned, seed=seed, steps=steps, constraints=constraints, **goal, **options
        ), model
    for name in (*hybrid_options, *goal, *given(stack=stack)):
        shown_name = "pin" if name == "pinned" else name
        raise ParenvsError(f"{_option(shown_name)} is an option of --task {HybridPlan.task}")
    is_pipeline = task == PipelinePlan.task
    if not is_pipeline and choosing and reward is None:
        reward = "step_time"
    problem_options = given(
        stages=stages,
        micro_batch=micro_batch,
        micro_batches=micro_batches,
        copies=copies,
        recompute=recompute,
        sync=sync,
        tied=tied,
        devices=devices,
        scope=scope,
        rules=rules,
        uneven=uneven,
        reward=reward,
        memory_limit=None if memory_limit is None else _limit(memory_limit),
    )
    for name in problem_options if task in TASKS else ():  # problem() refuses unknown tasks
        if name not in REGISTRY[task].option_names:
            raise ParenvsError(f"{_option(name)} is not an option of --task {task}")
    if devices_used is not None and not is_pipeline:
        raise ParenvsError(f"--devices-used is not an option of --task {task}")
    how = reading(variables, batch, frozen)
    model = Model(instance, {**given(arguments=arguments), **how}, task)
    where: Any = cluster
    parts: list[Cluster] = []  # among which a planner chooses
    if is_pipeline:
        whole = Cluster.parse("C" if cluster is None else cluster)
        if precision is not None:
            whole, precision = whole.at(precision), None
        where = whole if devices_used is None else whole.part(devices_used)
        if choosing and stages is None:
            problem_options["stages"] = 1  # any chain can have it
            parts = whole.parts() if devices_used is None else [where]
    if task in TASKS:
        model.tell(micro_batch)
    planned = problem(
        instance, where, task, precision=precision, **problem_options, **model.options
    )
    search_options = given(radius=radius, candidates=candidates, time_limit=time_limit)
    if parts:
        search_options["clusters"] = tuple(parts)
    if not is_pipeline and search_options:
        raise ParenvsError(
            f"{_option(next(iter(search_options)))} is not an option of --task {task}"
        )
    return request_of(planned, seed=seed, steps=steps, **search_options), model


def given(**options: Any) -> dict[str, Any]:
    """Return the options that the command line gives."""
    return {name: value for name, value in options.items() if value is not None}


def _option(name: str) -> str:
    """Return an option as it is written on the command line."""
    return "--" + name.replace("_", "-")


def _limit(text: str) -> float | str:
    """Return as bytes what ``text`` gives in GB, and ``device`` as it is."""
    if text == DEVICE:
        return text
    try:
        gigabytes = float(text)
    except ValueError:
        gigabytes = math.nan
    if not 0 < gigabytes < math.inf:
        raise ParenvsError(f"--memory-limit must be 'device' or a positive number, not {text!r}")
    return gigabytes * 1e9


def with_request(
    command: Callable[..., None],
    choosing: bool = True,
    drawn: Callable[..., None] | None = None,
) -> Callable[..., None]:
    """Give a command the options of ``read_request`` in place of its first two arguments.

    Args:
        command: takes what ``read_request`` returns, and its own options.
        choosing: see ``read_request``.
        drawn: what the command does for the tasks ``DRAWN``, which need no model: takes the options
            that the command line gives, by name.
    """
    # Not get_type_hints: with a default of None, Python 3.10's hides Annotated in an Optional.
    names = {"Request": Any}
    read = functools.partial(read_request, choosing)
    shared = inspect.signature(read_request, locals=names, eval_str=True).parameters
    shared_options = list(shared.values())[1:]
    command_parameters = inspect.signature(command, locals=names, eval_str=True).parameters
    own = list(command_parameters.values())[2:]

    @functools.wraps(command)
    def wrapper(**options: Any) -> None:
        if drawn is not None:
            if options["task"] in DRAWN:
                drawn(**{p.name: options[p.name] for p in parameters if _is_given(p, options)})
                return
            if options["task"] not in (*TASKS, *DRAWN):
                known = remedy(options["task"], (*TASKS, *DRAWN))
                raise ParenvsError(f"unknown task {options['task']!r}{known}")
            if options["instance"] is None:
                raise ParenvsError(f"a model is needed, or --task {', '.join(DRAWN)}")
        request, model = read(**{p.name: options.pop(p.name) for p in shared_options})
        command(request, model, **options)

    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in (*shared_options, *own)]
    if drawn is not None:
        parameters[0] = parameters[0].replace(default=None)
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapper


def _is_given(parameter: inspect.Parameter, options: dict[str, Any]) -> bool:
    """Return whether the command line gives an option another value than its default."""
    return bool(options[parameter.name] != parameter.default)


def check_range(option: str, value: int, least: int) -> None:
    """Raise a ParenvsError unless ``value`` is from ``least`` to the largest 32-bit integer.

    Gymnasium, NumPy and torch fail on other numbers, with errors that do not name the option.
    """
    if not least <= value < 2**31:
        raise ParenvsError(f"{option} must be from {least} to {2**31 - 1}, not {value}")


def check_engine_options(engine: str, address: str | None) -> None:
    """Raise a ParenvsError unless these options go together and Ray is there if it is wanted."""
    from parenvs.agents.learning.distributed.session import check_ray
    from parenvs.agents.learning.distributed.tasks import RAY, check_engine

    check_engine(engine)
    if engine == RAY:
        check_ray(address)
    elif address is not None:
        raise ParenvsError(f"--address is an option of --engine {RAY}")


def _picture(path: Path | None) -> Path | None:
    """Refuse a wrong ending of the picture's file before the work, not after it."""
    if path is not None:
        from parenvs.view import ending

        ending(path)
    return path
