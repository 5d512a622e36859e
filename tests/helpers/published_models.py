"""Published sizes of the shipped models, and formulas of their FLOPs written a second time."""

from __future__ import annotations

from typing import NamedTuple

MULTIPLY_ADD = 2  # FLOPs


class Published(NamedTuple):
    """What is known of a model from elsewhere.

    Attributes:
        parameters: number of parameters.
        tolerance: largest share by which ours may differ from it.
        source: where the number of parameters is from.
        flops: FLOPs of one example's forward pass.
        flops_tolerance: likewise.
        flops_source: where those are from; "formula" is one of this module.
    """

    parameters: float
    tolerance: float
    source: str
    flops: float
    flops_tolerance: float
    flops_source: str


def decoder(
    layers: int,
    width: int,
    hidden: int,
    vocab: int,
    tokens: int,
    kv: float = 1.0,
    gated: bool = False,
    used: int = 1,
) -> float:
    """FLOPs of a decoder on one sequence; attention over all pairs of tokens.

    Args:
        layers: number of layers.
        width: residual width.
        hidden: width inside the feed-forward block.
        vocab: classes of the head.
        tokens: length of the sequence.
        kv: heads of keys over heads of queries.
        gated: whether the block has three matrices.
        used: experts that a token uses.
    """
    attention = (2 + 2 * kv) * width**2 + 2 * tokens * width
    block = (3 if gated else 2) * width * hidden * used
    return MULTIPLY_ADD * tokens * (layers * (attention + block) + width * vocab)


def encoder_decoder(layers: int, width: int, heads: int, hidden: int, source: int, target: int):
    """FLOPs of an encoder and a decoder with cross-attention, without embedding and head.

    Args:
        layers: layers of each.
        width: residual width.
        heads: width of all heads together.
        hidden: width inside the feed-forward block.
        source: length of what is encoded.
        target: length of what is decoded.
    """
    own = 4 * width * heads
    encoder = source * (own + 2 * width * hidden + 2 * source * heads)
    decoder = target * (own + 2 * width * hidden + 2 * target * heads)
    cross = 2 * width * heads * (target + source) + 2 * target * source * heads
    return MULTIPLY_ADD * layers * (encoder + decoder + cross)


def t5(layers: int, width: int, heads: int, hidden: int) -> float:
    """FLOPs of T5 on a pair of sequences of 512 tokens."""
    head = MULTIPLY_ADD * 512 * width * 32128
    return encoder_decoder(layers, width, heads, hidden, 512, 512) + head


def bert() -> float:
    """FLOPs of BERT-48 on one sequence: 76 positions are predicted, and one next sentence."""
    encoder = decoder(48, 1024, 4096, 0, 512)
    head = 76 * (1024**2 + 1024 * 30522) + 1024**2 + 2 * 1024
    return encoder + MULTIPLY_ADD * head


def mixtral() -> float:
    """FLOPs of Mixtral on one sequence: two experts a token, a router, and sending to and fro.

    Each of 1,024 tokens of a group is multiplied with 8 x 256 places, there and back.
    """
    sending = MULTIPLY_ADD * 4096 * 32 * (2 * 8 * 256 * 4096 + 8 * 4096)
    return decoder(32, 4096, 14336, 32000, 4096, 1 / 4, True, 2) + sending


def lstm() -> float:
    """FLOPs of BIG LSTM on 20 tokens, against 8,192 sampled words and the true one."""
    layer = 2 * 1024 * 4 * 8192 + 8192 * 1024
    return MULTIPLY_ADD * 20 * (2 * layer + 1024 * 8193)


def whisper() -> float:
    """FLOPs of Whisper large on 30 seconds and 448 tokens."""
    convolutions = 3 * 80 * 1280 * 3000 + 3 * 1280 * 1280 * 1500
    stacks = encoder_decoder(32, 1280, 1280, 5120, 1500, 448)
    return stacks + MULTIPLY_ADD * (convolutions + 448 * 1280 * 51865)


def dlrm() -> float:
    """FLOPs of DLRM on one example."""
    bottom = 13 * 512 + 512 * 256 + 256 * 128
    top = 479 * 1024 + 1024 * 1024 + 1024 * 512 + 512 * 256 + 256
    return MULTIPLY_ADD * (bottom + top + 27 * 27 * 128)


def unet() -> float:
    """FLOPs of Stable Diffusion's U-Net on one image of 64x64 latents."""
    total = 0.0

    def conv(side: int, inputs: int, outputs: int, kernel: int = 3) -> None:
        nonlocal total
        total += side**2 * inputs * outputs * kernel**2

    def residual(side: int, inputs: int, outputs: int) -> None:
        nonlocal total
        conv(side, inputs, outputs)
        conv(side, outputs, outputs)
        total += 1280 * outputs
        if inputs != outputs:
            conv(side, inputs, outputs, 1)

    def transformer(side: int, width: int) -> None:
        nonlocal total
        places = side**2
        total += places * (2 + 4 + 2 + 12) * width**2 + 2 * 77 * 768 * width
        total += 2 * places**2 * width + 2 * places * 77 * width

    widths, skips, now = (320, 640, 1280, 1280), [320], 320
    conv(64, 4, 320)
    for level, width in enumerate(widths):
        for _ in range(2):
            residual(64 >> level, now, width)
            if level < 3:
                transformer(64 >> level, width)
            now = width
            skips.append(now)
        if level < 3:
            conv(32 >> level, now, now)
            skips.append(now)
    residual(8, 1280, 1280)
    transformer(8, 1280)
    residual(8, 1280, 1280)
    for level in (3, 2, 1, 0):
        for _ in range(3):
            residual(64 >> level, now + skips.pop(), widths[level])
            if level < 3:
                transformer(64 >> level, widths[level])
            now = widths[level]
        if level:
            conv(128 >> level, now, now)
    conv(64, 320, 4)
    return MULTIPLY_ADD * (total + 320 * 1280 + 1280 * 1280)


TORCHVISION = "torchvision's table of weights"
FORMULA = "formula"


def _known(
    parameters: float, source: str, flops: float, flops_source: str = FORMULA, **tolerances: float
) -> Published:
    tolerance, of_flops = tolerances.get("tolerance", 1e-6), tolerances.get("of_flops", 0.01)
    return Published(parameters, tolerance, source, flops, of_flops, flops_source)


PUBLISHED: dict[str, Published] = {
    "vgg-19": _known(143_667_240, TORCHVISION, 2 * 19.63e9, TORCHVISION, of_flops=0.04),
    "t5-base": _known(220e6, "arXiv 1910.10683, 3.1.1", t5(12, 768, 768, 3072), tolerance=0.02),
    "t5-3b": _known(2.8e9, "arXiv 1910.10683, 3.7", t5(24, 1024, 4096, 16384), tolerance=0.02),
    "t5-11b": _known(11e9, "arXiv 1910.10683, 3.7", t5(24, 1024, 16384, 65536), tolerance=0.03),
    "bert-48": _known(640e6, "arXiv 2007.04069, Table 1", bert(), tolerance=0.01),
    "llama3-8b": _known(
        8_030_261_248,
        "Meta-Llama-3-8B, model card (8.03 B)",
        decoder(32, 4096, 14336, 128256, 8192, 1 / 4, True),
    ),
    "llama3-70b": _known(
        70_553_706_496,
        "Meta-Llama-3-70B, model card (70.6 B)",
        decoder(80, 8192, 28672, 128256, 8192, 1 / 8, True),
    ),
    "gpt3-175b": _known(
        174_600e6,
        "arXiv 2005.14165, Table D.1",
        decoder(96, 12288, 4 * 12288, 50257, 2048),
        tolerance=1e-4,
    ),
    "mixtral-8x7b": _known(46_702_792_704, "Mixtral-8x7B-v0.1, model card (46.7 B)", mixtral()),
    "big-lstm": _known(1.8e9, "arXiv 1602.02410, Table 1", lstm(), tolerance=0.02),
    "resnet-50": _known(25_557_032, TORCHVISION, 2 * 4.09e9, TORCHVISION, of_flops=0.03),
    "convnext-l": _known(197_767_336, TORCHVISION, 2 * 34.36e9, TORCHVISION),
    "vit-h14": _known(632_045_800, TORCHVISION, 2 * 167.29e9, TORCHVISION),
    "mixer-l16": _known(
        208.2e6, "timm, model card", 2 * 44.6e9, "timm, model card", tolerance=1e-4
    ),
    "unet-sd1": _known(859_520_964, "Stable Diffusion v1 (860 M)", unet(), of_flops=0.03),
    "dit-xl2": _known(
        675e6, "arXiv 2212.09748, Table 1", 2 * 118.6e9, "arXiv 2212.09748, Table 4", tolerance=1e-3
    ),
    "clip-l14": _known(
        427.62e6,
        "OpenCLIP, docs/model_profile.csv",
        175.33e9,
        "OpenCLIP, docs/model_profile.csv",
        tolerance=1e-4,
    ),
    "whisper-large": _known(1550e6, "arXiv 2212.04356, Table 1", whisper(), tolerance=0.006),
    "dlrm-criteo": _known(
        187_767_399 * 128 + 2_368_897, "rows of MLPerf's tables, dense layers by hand", dlrm()
    ),
}
"""Instance -> its published figures; loops over layers (``-scanned``) have those of the same.

Convolutions count valid taps only, published counts all, so that VGG and ResNet have 2 to 4 % less.
"""


def published(name: str) -> Published:
    """The figures of a shipped instance."""
    return PUBLISHED[name.removesuffix("-scanned")]
