"""The commands that measure: ``parenvs calibrate``, ``profile`` and ``run``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from parenvs.cli import options
from parenvs.cli.options import FunctionArguments
from parenvs.core.registry import TASKS
from parenvs.core.task import Task
from parenvs.errors import ParenvsError, need_extra, refuse_unknown, shown
from parenvs.files import is_function
from parenvs.view.commands import of
from parenvs.view.terminal import Json, PlanFile, Step, check_range, note, say_tables, written

_Kind = Annotated[
    str, typer.Option(metavar="cpu|cuda", help="Kind of device.", autocompletion=options.devices)
]
_Repeats = Annotated[int, typer.Option(help="Runs of everything that count.")]


def calibrate(
    path: Annotated[
        Path, typer.Option("--out", help="Write the cluster to this .json file.")
    ] = Path("machine.json"),
    framework: Annotated[
        str,
        typer.Option(
            metavar="torch|jax", help="Framework that measures.", autocompletion=of("torch", "jax")
        ),
    ] = "torch",
    device: _Kind = "cpu",
    processes: Annotated[
        int, typer.Option(help="Processes here (of JAX: devices), each with a GPU or some cores.")
    ] = 2,
    repeats: _Repeats = 20,
    largest: Annotated[
        float, typer.Option(help="Largest array of collectives in MB, from 0.004.")
    ] = 67.2,
    model: Annotated[
        str | None,
        typer.Option(help="The model whose kernels are measured, a shape (default: a few)."),
    ] = None,
    tp: Annotated[str, typer.Option(help="Ranks that share every matrix, in --model: 1,2.")] = "1",
    context: Annotated[
        str, typer.Option(help="Ranks that share a sample's tokens, in --model.")
    ] = "1",
    micro_batch: Annotated[
        str, typer.Option(help="Samples in a micro-batch of a replica, in --model.")
    ] = "1",
    as_json: Json = False,
) -> None:
    """Measure this machine with PyTorch or JAX: products, memory, collectives; write a cluster.

    Every command takes the file as --cluster; 4x8:FILE are four servers of eight such devices.
    """
    from parenvs.cli import tables
    from parenvs.clock.calibrate import calibrated
    from parenvs.clock.calibration import SIZES

    refuse_unknown("--framework: no framework", framework, ("torch", "jax"))
    _check_ending(path, ".json")
    sizes = [size for size in SIZES if size <= 1e6 * largest]
    if len(sizes) < 2:
        words = f"at least 0.0041 MB, not {largest:g}; two sizes are needed"
        raise ParenvsError(f"--largest must be {words}")
    products: list[tuple[Any, ...]] = []
    attended: list[tuple[int, ...]] = []
    if model is not None:
        if framework == "jax":
            raise ParenvsError("--model is measured by PyTorch; leave out --framework jax")
        task = next(task for task in TASKS.values() if task.supports(Task.kernels))
        splits = {"--tp": tp, "--context": context, "--micro-batch": micro_batch}
        degrees = [_numbers(name, words) for name, words in splits.items()]
        products, attended = task.kernels(model, *degrees)
    with Step(f"measuring {processes} x {device}"):
        calibration = calibrated(
            device, processes, repeats, sizes, products, attended, framework=framework
        )
    words = f"written to {path}; give it as --cluster {path}"
    with written(lambda: calibration.save(path), words, quiet=as_json):
        say_tables(tables.calibration(calibration.rows), as_json=as_json)
        for words in calibration.missing:
            note(f"not measured: {words}")


def profile(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A PyTorch module or JAX function: FILE.py:NAME.")
    ],
    arguments: FunctionArguments = None,
    path: Annotated[Path, typer.Option("--out", help="Write the chain to this .csv file.")] = Path(
        "chain.csv"
    ),
    device: _Kind = "cpu",
    repeats: _Repeats = 20,
    warm_up: Annotated[int, typer.Option(help="Runs before those.")] = 3,
    threads: Annotated[int, typer.Option(help="Threads of PyTorch on a CPU.")] = 1,
    processes: Annotated[
        int, typer.Option(help="Processes of PyTorch that measure at once, as stages will run.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Measure the layers of a model; write the chain that pipelines are planned on.

    Layers are a PyTorch module's submodules, or the named scopes of a JAX function.
    """
    from parenvs.cli import tables
    from parenvs.graph.python_source import is_torch

    for option, value, minimum in (("--repeats", repeats, 1), ("--warm-up", warm_up, 0),
                                 ("--threads", threads, 1),
                                 ("--processes", processes, 1)):  # fmt: skip
        check_range(option, value, minimum)
    _check_ending(path, ".csv")
    if not is_function(model):
        raise ParenvsError(
            f"profile takes a PyTorch module or a JAX function, FILE.py:NAME, not {shown(model)}"
        )
    given = (model, arguments, path.stem, repeats, warm_up, device)
    with Step(f"measuring {model}"):
        if is_torch(model):
            with need_extra("torch", "profiling"):
                from parenvs.clock.kernels import profiled
            measured = profiled(*given, threads, processes)
        else:
            with need_extra("jax", "profiling"):
                from parenvs.clock.xla import profiled as scopes
            measured = scopes(*given)
    head = [f"parenvs profile {model} on {device}", *measured.comments()]
    with written(
        lambda: measured.profile.to_csv(path, head),
        f"written to {path}; plan it with --micro-batch {measured.samples}",
        quiet=as_json,
    ):
        say_tables(tables.layers(measured), as_json=as_json)


def run(
    file: PlanFile,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="The model that it is for: FILE.py:NAME.")
    ],
    arguments: FunctionArguments = None,
    repeats: Annotated[int, typer.Option(help="Runs of everything that count: timed steps.")] = 20,
    processes: Annotated[
        int | None, typer.Option(help="Processes, or devices of JAX (default: the plan's).")
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="File of parenvs calibrate, to predict seconds by.")
    ] = None,
    device: _Kind = "cpu",
    loss: Annotated[
        str | None,
        typer.Option(help="Output of a JAX step that is the loss, where several may be: 1/loss."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a plan here, in local processes of PyTorch or on virtual devices of JAX, and compare.

    Losses and state beside one device; collectives, memory and seconds beside what is predicted.
    Exit status 2 if they are not those of one device, or anything is not finite.
    """
    from parenvs.clock.run import run as running

    check_range("--repeats", repeats, 1)
    if processes is not None:
        check_range("--processes", processes, 1)
    if not is_function(model):
        raise ParenvsError(f"run takes a model FILE.py:NAME, not {shown(model)}")
    with Step(f"running {file}"):
        outcome = running(file, model, arguments, repeats, processes, calibration, device, loss)
    options.print_result(outcome, as_json)
    if not outcome.agrees:
        raise ParenvsError(f"{file}: {'; '.join(outcome.faults)}")


def _numbers(option: str, words: str) -> list[int]:
    if not re.fullmatch(r"[1-9]\d{0,5}(,[1-9]\d{0,5})*", words):
        raise ParenvsError(f"{option} must be whole numbers from 1, as 1,2,4, not {shown(words)}")
    return [int(word) for word in words.split(",")]


def _check_ending(path: Path, ending: str) -> None:
    if path.suffix != ending:
        raise ParenvsError(f"--out must end in {ending}, not {shown(str(path))}")
