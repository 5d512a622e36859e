"""JAX code of the shipped models: VGG-19, T5-base, T5-3B, T5-11B and BERT-48.

Each model is a ``Model``: shapes of parameters and batch, and a loss. No weight is ever allocated,
so that the largest one lowers to HLO in seconds on a laptop:

    fn, args = train_step(MODELS["t5-11b"])
    lowered = jax.jit(fn, keep_unused=True).lower(*args)

Parameters are nested dicts of float32 arrays. Layers are unrolled, each in a ``named_scope``, so
that the path of a variable (``encoder/layer_0/self/q``) and the ``op_name`` of an instruction both
tell where it belongs. Dropout is left out: it adds random bits to a graph and nothing to its plans.
Losses compare labels with an iota instead of gathering, so that the classes can be partitioned.
"""

from parenvs.datasets.models.bert import bert
from parenvs.datasets.models.model import Model, forward, train_step
from parenvs.datasets.models.t5 import t5
from parenvs.datasets.models.vgg import vgg

__all__ = ["MODELS", "Model", "bert", "forward", "t5", "train_step", "vgg"]

MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        vgg(name="vgg-19"),
        t5(name="t5-base"),
        t5(24, 1024, 16384, 32, 128, name="t5-3b"),
        t5(24, 1024, 65536, 128, 128, name="t5-11b"),
        bert(48, name="bert-48"),
    )
}
"""The shipped models, by instance name."""
