"""Options that several commands of ``parenvs`` share, and the problem that they describe."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parenvs.errors import ParenvsError

if TYPE_CHECKING:
    from parenvs.agents.planners import Request

Instance = Annotated[str, typer.Argument(help="Shipped name, or path of a graph or .csv profile.")]
ClusterText = Annotated[
    str, typer.Option("--cluster", help="Preset, '4x8:v100,25Gbps', or a .json file.")
]
Stages = Annotated[int | None, typer.Option(help="Pipeline stages (default: one a server).")]
Seed = Annotated[int, typer.Option(help="Seed of everything random.")]
MicroBatch = Annotated[int, typer.Option(help="Samples in a micro-batch.")]
PlanOut = Annotated[Path | None, typer.Option("--out", help="Write the plan to this .json file.")]
Plot = Annotated[
    Path | None,
    typer.Option(
        callback=lambda path: _picture(path), help="Draw chain and schedule (.png, .svg, .pdf)."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def read_request(
    instance: Instance,
    task: Annotated[str, typer.Option(help="What to plan; so far: pipeline-cut.")] = "pipeline-cut",
    cluster: ClusterText = "C",
    stages: Stages = None,
    seed: Seed = 0,
    steps: Annotated[
        int, typer.Option(help="Environment steps of agents that learn or draw.")
    ] = 60_000,
    micro_batch: MicroBatch = 16,
    micro_batches: Annotated[int, typer.Option(help="Micro-batches in a step.")] = 16,
    radius: Annotated[
        int, typer.Option(help="Distance of device cuts from the centre solution.")
    ] = 3,
    candidates: Annotated[str, typer.Option(help="Pivots that may be cut: minima or all.")] = (
        "minima"
    ),
) -> Request:
    """The problem of one command, as every planner takes it."""
    from parenvs.agents.planners import Request
    from parenvs.candidates import CutSpace
    from parenvs.cluster import Cluster
    from parenvs.instances import load_profile
    from parenvs.pipeline import Pipeline

    if task != "pipeline-cut":
        raise ParenvsError(f"unknown task {task!r}; known: pipeline-cut")
    check_range("--steps", steps, 1)
    check_range("--micro-batch", micro_batch, 1)
    check_range("--seed", seed, 0)
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
    return Request(space, env_kwargs, seed, steps)


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
