"""Memory of a step against what XLA's own compiler for CPUs assigns, on small models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.framework import Column, columns, main, measurement, percent, progress
from parenvs import from_jax
from parenvs.tasks.partition.formulas import Footprint


def models() -> dict[str, Callable[[], Any]]:
    """Models of two layers or blocks, one per family, wide enough for activations to matter."""
    from parenvs.datasets.models import bert, t5, vgg

    return {
        "vgg, 2 blocks": lambda: vgg(((2, 64), (2, 128)), 512, 10, 32, batch_size=32),
        "t5, 2+2 layers": lambda: t5(2, 256, 1024, 8, 32, vocab=1024, tokens=128, batch_size=16),
        "t5, 4+4 layers": lambda: t5(4, 256, 1024, 8, 32, vocab=1024, tokens=128, batch_size=16),
        "bert, 2 layers": lambda: bert(
            2, 256, 8, 1024, vocab=1024, positions=128, tokens=128, predictions=16, batch_size=16
        ),
        "bert, 6 layers": lambda: bert(
            6, 256, 8, 1024, vocab=1024, positions=128, tokens=128, predictions=16, batch_size=16
        ),
    }


def measure(name: str, model: Any) -> dict[str, Any]:
    """Bytes by our count and by XLA's, with variables and optimizer state updated in place."""
    import jax

    from parenvs.datasets.models import train_step

    progress(name)
    function, arguments = train_step(model)
    jitted = jax.jit(function, keep_unused=True, donate_argnums=(0, 1))
    assigned = jitted.lower(*arguments).compile().memory_analysis()
    graph = from_jax(function, *arguments, name=name)
    whole = Footprint(graph, np.zeros(len(graph.dims), dtype=int), np.ones(1))
    held = whole.memory(np.zeros(1, dtype=bool))
    return {
        "model": name,
        "xla_temporary": assigned.temp_size_in_bytes,
        "xla_arguments": assigned.argument_size_in_bytes,
        "temporary": held.gradients + held.activations,
        "arguments": held.parameters + held.optimizer + held.inputs,
    }


@measurement(title="Memory against XLA's")
def memory() -> dict[str, Any]:
    return {"models": [measure(name, make()) for name, make in models().items()]}


@memory.page
def page(data: dict[str, Any]) -> list[str]:
    told: list[Column] = [
        ("model", "{model}"),
        ("arguments (MB)", "{arguments:.2f/1e6}"),
        ("XLA's", "{xla_arguments:.2f/1e6}"),
        ("temporary (MB)", "{temporary:.2f/1e6}"),
        ("XLA's", "{xla_temporary:.2f/1e6}"),
        ("over XLA's", lambda row: percent(row["temporary"] / row["xla_temporary"] - 1, 0)),
    ]
    return [
        "Replicated training steps with Adam. `arguments`: variables, optimizer state and inputs; "
        "`temporary`: gradients and activations at the peak. XLA's are those of its CPU compiler, "
        "which fuses, orders and lays out what our model takes in trace order and unfused.",
        columns(data["models"], told),
    ]


if __name__ == "__main__":
    main(memory)
