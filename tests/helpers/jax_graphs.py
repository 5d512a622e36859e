"""Lowered modules and their graphs, each made once for all tests. Needs JAX."""

from functools import cache
from typing import Any

import jax
from jax_models import decoder_only, resnet50

from parenvs.datasets.models import MODELS, Model, bert, forward, t5, train_step, vgg
from parenvs.graph import reader as hlo
from parenvs.graph.graph import Graph

SMALL = {
    "vgg": lambda: vgg(((1, 8), (2, 16)), 32, 10, 16, 4),
    "t5": lambda: t5(2, 32, 64, 4, 8, 100, 16, 4),
    "bert": lambda: bert(2, 32, 4, 64, 100, 16, 16, 3, 4),
    "decoder": decoder_only,
    "resnet50": resnet50,
}
"""Small models, and the two that are not shipped."""
NAMES = ["vgg-19", "t5", "bert", "resnet50", "decoder"]
"""One of each architecture."""


def model(name: str) -> Model:
    """Returns a shipped or small model."""
    return MODELS[name] if name in MODELS else SMALL[name]()


@cache
def lowered(name: str, kind: str) -> Any:
    """Returns the lowered ``"forward"`` or ``"train"`` variant."""
    function, args = (forward if kind == "forward" else train_step)(model(name))
    return jax.jit(function, keep_unused=True).lower(*args)


@cache
def proto(name: str, kind: str) -> bytes:
    """Returns the module, serialized."""
    return lowered(name, kind).compiler_ir("hlo").as_serialized_hlo_module_proto()


@cache
def graph(name: str, kind: str) -> Graph:
    """Returns the graph."""
    return hlo.read_proto(proto(name, kind), name=name)
