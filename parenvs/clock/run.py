"""Runs a plan on this machine, and compares it with one device and with what is predicted."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import numpy as np

from parenvs.clock.calibration import Calibration
from parenvs.clock.comparison import Run, of_plan, traffic_of
from parenvs.clock.members import Timing, system_load
from parenvs.core.plan import Plan, load_plan
from parenvs.core.registry import task_with
from parenvs.core.task import Task
from parenvs.errors import ParenvsError, need_extra
from parenvs.files import StrPath
from parenvs.graph.python_source import is_torch


def run(
    file: StrPath,
    source: str,
    arguments: str | None = None,
    steps: int = 20,
    processes: int | None = None,
    calibration: StrPath | None = None,
    kind: str = "cpu",
    loss: str | None = None,
) -> Run:
    """Run a plan in local processes of PyTorch, or on virtual devices of JAX, and compare.

    Args:
        file: the plan's file.
        source: the model that it was made for, ``FILE.py:NAME``: a PyTorch module, or a JAX
            function of a training step.
        arguments: what gives its arguments.
        steps: that are timed.
        processes: how many devices there should be; None for those of the plan.
        calibration: file of a calibration of this machine; without one no seconds are predicted.
        kind: ``"cpu"`` or ``"cuda"``.
        loss: which output of a JAX step the loss is, where several may be.

    Raises:
        ParenvsError: the plan cannot be run, or not on as many devices; it is of another model, or
            the calibration of other devices; or a process failed.
    """
    plan: Any = load_plan(file)
    task_with(plan, Task.layout, Task.stages, where=os.fspath(file))
    measured = None if calibration is None else Calibration.load(calibration)
    where = "" if calibration is None else os.fspath(calibration)
    if not is_torch(source):
        with need_extra("jax", "running a plan"):
            from parenvs.clock import xla
        _check_processes(plan, processes, plan.cluster.devices)
        return xla.run(file, plan, source, arguments, steps, measured, kind, where, loss)
    if loss is not None:
        raise ParenvsError(f"--loss {loss}: a PyTorch module has one loss; leave it out")
    with need_extra("torch", "running a plan"):
        from parenvs.clock import torch_runs
    exported, prediction = of_plan(
        plan, None, measured, kind, where, partial(torch_runs.traced, source, arguments)
    )
    _check_processes(plan, processes, exported.pipe * exported.data * exported.model)
    if prediction.measured:
        torch_runs.check_chain(source, arguments, prediction.measured, plan.instance)
    load = system_load()
    answers = torch_runs.start(source, arguments, exported, steps, prediction.adam, kind)
    states, gradients = torch_runs.states(answers)
    # A predicted step without the update is compared with one without it.
    times = [np.add(x["step"], x["update"] if prediction.updates else 0.0) for x in answers]
    return Run(
        plan=os.fspath(file),
        words=exported.words or "one device",
        devices=len(answers),
        losses=tuple(answers[0]["losses"]),
        single=tuple(answers[0]["single"]),
        step=Timing.of([x.tolist() for x in times]),
        single_step=Timing.of(answers[0]["single_seconds"]),
        seconds=prediction.seconds,
        traffic=traffic_of([x["traffic"] for x in answers], prediction.traffic),
        memory=tuple(float(x["peak_bytes"]) for x in answers),
        predicted_memory=prediction.memory,
        load=load,
        states=states,
        gradients=gradients,
        notes=prediction.notes,
    )


def _check_processes(plan: Plan, asked: int | None, needed: int) -> None:
    if asked is not None and asked != needed:
        raise ParenvsError(
            f"--processes {asked}: the plan is for {needed}; give that, or plan for {asked}"
        )
