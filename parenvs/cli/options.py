"""Options that several commands of ``parenvs`` share, and the problem that they describe."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parenvs.errors import ParenvsError, did_you_mean

if TYPE_CHECKING:
    from parenvs.agents.request import Request

Instance = Annotated[str, typer.Argument(help="Shipped name, or path of a graph or .csv profile.")]
TASKS = ("pipeline-cut", "operator-partition", "data-parallel")
_KNOWN = ", ".join(TASKS)
ClusterText = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Preset, '4x8:v100,25Gbps', or a .json file (default: C for pipelines, 1x8:v100).",
    ),
]
Stages = Annotated[int | None, typer.Option(help="Pipeline stages (default: one a server).")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
MicroBatch = Annotated[int, typer.Option(help="Samples in a micro-batch.")]
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
    instance: Instance,
    task: Annotated[str, typer.Option(help=f"What to plan: {_KNOWN}.")] = TASKS[0],
    cluster: ClusterText = None,
    devices: Annotated[
        int | None, typer.Option(help="One server of so many V100, instead of --cluster.")
    ] = None,
    seed: Seed = 0,
    steps: Annotated[
        int, typer.Option(help="Environment steps of agents that learn or draw.")
    ] = 60_000,
    stages: Stages = None,
    micro_batch: MicroBatch = 16,
    micro_batches: Annotated[int, typer.Option(help="Micro-batches in a step.")] = 16,
    radius: Annotated[
        int, typer.Option(help="Distance of device cuts from the centre solution.")
    ] = 3,
    candidates: Annotated[str, typer.Option(help="Pivots that may be cut: minima or all.")] = (
        "minima"
    ),
    rules: Annotated[str | None, typer.Option(help="shardy (default) or automap.")] = None,
    uneven: Annotated[str | None, typer.Option(help="pad (default) or forbid.")] = None,
    reward: Annotated[str | None, typer.Option(help="paper (default) or step_time.")] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(help="GB a device, or 'device' for 0.9 of its own; for the exact agent."),
    ] = None,
) -> Request:
    """The problem of one command, as every planner takes it."""
    check_range("--steps", steps, 1)
    check_range("--micro-batch", micro_batch, 1)
    check_range("--seed", seed, 0)
    if task not in TASKS:
        raise ParenvsError(f"unknown task {task!r}{did_you_mean(task, TASKS)}; known: {_KNOWN}")
    of_pipelines = {"--stages": stages}
    of_partitions = {
        "--devices": devices,
        "--rules": rules,
        "--uneven": uneven,
        "--reward": reward,
        "--memory-limit": memory_limit,
    }
    for option, value in (of_partitions if task == TASKS[0] else of_pipelines).items():
        if value is not None:
            raise ParenvsError(f"{option} is not an option of --task {task}")
    common = {"seed": seed, "steps": steps}
    if task == TASKS[0]:
        where = "C" if cluster is None else cluster
        return _pipeline(
            instance, where, stages, micro_batch, micro_batches, radius, candidates, common
        )
    choices = (rules or "shardy", uneven or "pad", reward or "paper")
    return _partition(instance, task, cluster, devices, *choices, memory_limit, common)


def _pipeline(
    instance: str,
    cluster: str,
    stages: int | None,
    micro_batch: int,
    micro_batches: int,
    radius: int,
    candidates: str,
    common: dict[str, int],
) -> Request:
    from parenvs.agents.planners import PipelineRequest
    from parenvs.cluster import Cluster
    from parenvs.instances import load_profile
    from parenvs.pipeline.cuts import CutSpace
    from parenvs.pipeline.problem import Pipeline

    devices = Cluster.parse(cluster)
    profile = load_profile(instance, devices, micro_batch)
    space = CutSpace.build(Pipeline(profile, devices, micro_batches), stages, radius, candidates)
    env_kwargs = {
        "instance": instance,
        "cluster": devices.to_json(),
        "stages": space.stages,
        "micro_batch": micro_batch,
        "micro_batches": micro_batches,
        "radius": radius,
        "candidates": candidates,
    }
    return PipelineRequest(env_kwargs, **common, space=space)


def _partition(
    instance: str,
    task: str,
    cluster: str | None,
    devices: int | None,
    rules: str,
    uneven: str,
    reward: str,
    memory_limit: str | None,
    common: dict[str, int],
) -> Request:
    from parenvs.agents.partition_planners import PartitionRequest
    from parenvs.cluster import choose_cluster
    from parenvs.instances import load_partitioning
    from parenvs.partitioning.space import PartitionSpace

    where = choose_cluster(cluster, devices)
    problem = load_partitioning(instance, where, rules, uneven)
    space = PartitionSpace.of(problem, task, reward, linkage=task == "operator-partition")
    limit = None
    if memory_limit is not None:
        limit = problem.memory_limit if memory_limit == "device" else _gigabytes(memory_limit)
    env_kwargs = {
        "instance": instance,
        "cluster": where.to_json(),
        "rules": rules,
        "uneven": uneven,
        "reward": reward,
    }
    return PartitionRequest(env_kwargs, **common, space=space, memory_limit=limit)


def _gigabytes(text: str) -> float:
    """Bytes from a number of GB."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ParenvsError(f"--memory-limit must be 'device' or a positive number, not {text!r}")
    return number * 1e9


def with_request(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of ``read_request`` in place of its first argument."""
    # Not get_type_hints: with a default of None, Python 3.10's hides Annotated in an Optional.
    names = {"Request": Any}
    shared = inspect.signature(read_request, locals=names, eval_str=True).parameters
    signature = inspect.signature(command, locals=names, eval_str=True)
    own = list(signature.parameters.values())[1:]

    @functools.wraps(command)
    def wrapper(**options: Any) -> None:
        request = read_request(**{name: options.pop(name) for name in shared})
        command(request, **options)

    both = [p.replace(kind=p.KEYWORD_ONLY) for p in (*shared.values(), *own)]
    wrapper.__signature__ = inspect.Signature(both)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in both}
    return wrapper


def check_range(option: str, value: int, least: int) -> None:
    """Refuse a number that the libraries below would trip over."""
    if not least <= value < 2**31:
        raise ParenvsError(f"{option} must be from {least} to {2**31 - 1}, not {value}")


def _picture(path: Path | None) -> Path | None:
    """Notice a wrong ending before the work, not after it."""
    if path is not None:
        from parenvs.viewer import ending

        ending(path)
    return path
