"""Options that several commands of ``parenvs`` share, and the problem that they describe."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parenvs.errors import ParenvsError
from parenvs.instances import TASKS

if TYPE_CHECKING:
    from parenvs.agents.planners import Request

Instance = Annotated[str, typer.Argument(help="Shipped name, or path of a graph or .csv profile.")]
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
MicroBatch = Annotated[int | None, typer.Option(help="Samples in a micro-batch (default: 16).")]
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
    micro_batch: MicroBatch = None,
    micro_batches: Annotated[
        int | None, typer.Option(help="Micro-batches in a step (default: 16).")
    ] = None,
    copies: Annotated[
        float | None, typer.Option(help="Copies of the parameters on a device (default: 2).")
    ] = None,
    recompute: Annotated[
        str | None, typer.Option(help="Activations recomputed: full (default) or none.")
    ] = None,
    sync: Annotated[
        str | None,
        typer.Option(help="allreduce (default), parameter-server or sharded-parameter-server."),
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
    if micro_batch is not None:
        check_range("--micro-batch", micro_batch, 1)
    check_range("--seed", seed, 0)
    from parenvs.agents.planners import request_of
    from parenvs.instances import PARTITION_OPTIONS, PIPELINE_OPTIONS, problem

    pipelines = task == "pipeline-cut"
    given = {
        "stages": stages,
        "micro_batch": micro_batch,
        "micro_batches": micro_batches,
        "copies": copies,
        "recompute": recompute,
        "sync": sync,
        "devices": devices,
        "rules": rules,
        "uneven": uneven,
        "reward": reward,
    }
    given = {name: value for name, value in given.items() if value is not None}
    for name in given if task in TASKS else ():  # of an unknown task, problem() tells
        if name not in (PIPELINE_OPTIONS if pipelines else PARTITION_OPTIONS):
            raise ParenvsError(f"{_option(name)} is not an option of --task {task}")
    made = problem(instance, cluster, task, **given)
    options: dict[str, Any] = {"seed": seed, "steps": steps}
    search = {"radius": radius, "candidates": candidates, "time_limit": time_limit}
    search = {name: value for name, value in search.items() if value is not None}
    if pipelines and memory_limit is not None:
        raise ParenvsError(f"--memory-limit is not an option of --task {task}")
    if not pipelines and search:
        raise ParenvsError(f"{_option(next(iter(search)))} is not an option of --task {task}")
    if memory_limit is not None:
        own = made.memory_limit if memory_limit == "device" else _gigabytes(memory_limit)
        options["memory_limit"] = own
    return request_of(made, **options, **search)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


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
