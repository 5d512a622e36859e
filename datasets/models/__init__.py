"""JAX code of the shipped models, of thirteen families; three more are with the tests.

Each model is a ``Model``: shapes of parameters and batch, and a loss. No weight is ever allocated,
so that the largest one lowers to HLO in seconds on a laptop:

    fn, args = train_step(MODELS["t5-11b"])
    lowered = jax.jit(fn, keep_unused=True).lower(*args)

Parameters are nested dicts of float32 arrays. Layers are unrolled, each in a ``named_scope``, so
that the path of a variable (``encoder/layer_0/self/q``) and the ``op_name`` of an instruction both
tell where it belongs; some models come as loops over stacked layers as well (``-scanned``).
The models of Auto-MAP's paper (VGG, T5, BERT) compute in float32; all others in bfloat16, with
float32 parameters and optimizer. Dropout and gradient clipping are left out: they change no plan.
Losses compare labels with an iota instead of gathering, so that the classes can be partitioned.

Arguments of all families: ``layers``, ``width`` (residual), ``hidden`` (inside feed-forward
blocks), ``heads`` and ``kv_heads`` of attention, ``vocab``, ``tokens`` per sequence, ``patch`` and
``image`` (height and width in pixels), ``batch_size``, ``scanned`` (a loop over stacked layers).
"""

from parenvs.datasets.models.language import gpt, llama, lstm, mixtral
from parenvs.datasets.models.model import Model, forward, train_step
from parenvs.datasets.models.paper import bert, t5, vgg
from parenvs.datasets.models.vision import convnext, dit, mixer, resnet, unet, vit

__all__ = [
    "MODELS", "Model", "bert", "convnext", "dit", "forward", "gpt", "llama", "lstm", "mixer",
    "mixtral", "resnet", "t5", "train_step", "unet", "vgg", "vit",
]  # fmt: skip


def _llama_70b(scanned: bool) -> Model:
    source = "torchtitan, docs/performance.md of 2024: Llama 3 70B on 64 A100, batch 64"
    return llama(80, 8192, 28672, 64, batch_size=64, scanned=scanned, trained_as=source)


MODELS: dict[str, Model] = {
    "vgg-19": vgg(),
    "t5-base": t5(),
    "t5-3b": t5(24, 1024, 16384, 32, 128),
    "t5-11b": t5(24, 1024, 65536, 128, 128),
    "bert-48": bert(48),
    "llama3-8b": llama(),
    "llama3-8b-scanned": llama(scanned=True),
    "llama3-70b": _llama_70b(scanned=False),
    "llama3-70b-scanned": _llama_70b(scanned=True),
    "gpt3-175b": gpt(),
    "gpt3-175b-scanned": gpt(scanned=True),
    "mixtral-8x7b": mixtral(),
    "mixtral-8x7b-scanned": mixtral(scanned=True),
    "big-lstm": lstm(),
    "resnet-50": resnet(),
    "convnext-l": convnext(),
    "vit-h14": vit(),
    "vit-h14-scanned": vit(scanned=True),
    "mixer-l16": mixer(),
    "unet-sd1": unet(),
    "dit-xl2": dit(),
}
"""Shipped models by instance name."""
