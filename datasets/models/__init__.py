"""JAX code of the shipped models, of sixteen families.

Each model is a ``Model``: shapes of parameters and batch, and a loss. No weight is ever allocated,
so that the largest one lowers to HLO in seconds on a laptop:

    fn, args = train_step(MODELS["t5-11b"])
    lowered = jax.jit(fn, keep_unused=True).lower(*args)

Parameters are nested dicts of float32 arrays. Layers are unrolled, each in a ``named_scope``, so
that the path of a variable (``encoder/layer_0/self/q``) and the ``op_name`` of an instruction both
tell where it belongs; some models come as loops over stacked layers as well (``-scanned``).
The models of Auto-MAP's paper (VGG, T5, BERT) compute in float32; all others in bfloat16, with
float32 parameters and optimiser. Dropout and gradient clipping are left out: they change no plan.
Losses compare labels with an iota instead of gathering, so that the classes can be partitioned.

Arguments of all families: ``layers``, ``width`` (residual), ``hidden`` (inside feed-forward
blocks), ``heads`` and ``kv_heads`` of attention, ``vocab``, ``tokens`` per sequence, ``patch`` and
``image`` (height and width in pixels), ``batch_size``, ``scanned`` (a loop over stacked layers).
"""

from parenvs.datasets.models.language import gpt, llama, lstm, mixtral
from parenvs.datasets.models.model import Model, forward, train_step
from parenvs.datasets.models.multimodal import clip, dlrm, whisper
from parenvs.datasets.models.paper import bert, t5, vgg
from parenvs.datasets.models.vision import convnext, dit, mixer, resnet, unet, vit

__all__ = [
    "MODELS", "Model", "bert", "clip", "convnext", "dit", "dlrm", "forward", "gpt", "llama",
    "lstm", "mixer", "mixtral", "resnet", "t5", "train_step", "unet", "vgg", "vit", "whisper",
]  # fmt: skip


def _llama_70b(name: str, scanned: bool) -> Model:
    source = "torchtitan, docs/performance.md of 2024: Llama 3 70B on 64 A100, batch 64"
    return llama(80, 8192, 28672, 64, batch_size=64, scanned=scanned, trained_as=source, name=name)


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        vgg(name="vgg-19"),
        t5(name="t5-base"),
        t5(24, 1024, 16384, 32, 128, name="t5-3b"),
        t5(24, 1024, 65536, 128, 128, name="t5-11b"),
        bert(48, name="bert-48"),
        llama(name="llama3-8b"),
        llama(scanned=True, name="llama3-8b-scanned"),
        _llama_70b("llama3-70b", scanned=False),
        _llama_70b("llama3-70b-scanned", scanned=True),
        gpt(name="gpt3-175b"),
        gpt(scanned=True, name="gpt3-175b-scanned"),
        mixtral(name="mixtral-8x7b"),
        mixtral(scanned=True, name="mixtral-8x7b-scanned"),
        lstm(name="big-lstm"),
        resnet(name="resnet-50"),
        convnext(name="convnext-l"),
        vit(name="vit-h14"),
        vit(scanned=True, name="vit-h14-scanned"),
        mixer(name="mixer-l16"),
        unet(name="unet-sd1"),
        dit(name="dit-xl2"),
        clip(name="clip-l14"),
        whisper(name="whisper-large"),
        dlrm(name="dlrm-criteo"),
    )
}
"""The shipped models, by instance name."""
