"""Names of cuts: both sides are told apart, whatever wrote the ``op_name``."""

import numpy as np
from cases import each

from parenvs import StageProfile
from parenvs.tasks.pipeline.view import cut_labels


def chain(names, reads=None, source="sha256:a graph"):
    count = len(names)
    ones = np.ones(count)
    return StageProfile(
        "toy", np.array(names, dtype=object), ones, ones, ones, ones,
        source=source, reads=None if reads is None else np.array(reads, dtype=object),
    )  # fmt: skip


def label(names, cut, width=48, **options):
    return cut_labels(chain(names, **options), [cut], width)[0]


def layers(before, scope, parts, count=3, head="lm_head/dot_general"):
    """Names of ``count`` layers, each with the same parts, between an embedding and a head."""
    names = [f"{before}/embed_tokens/gather"]
    names += [f"{before}/{scope}/{i}/{part}" for i in range(count) for part in parts]
    return [*names, f"{before}/{head}"]


GPT2 = layers(
    "jit(train_step)/jvp(FlaxGPT2LMHeadModule)/transformer",
    "h",
    ["ln_1/mul", "attn/c_attn/dot_general", "attn/c_proj/dot_general", "add", "mlp/c_fc/add"],
)
LLAMA = layers(
    "jit(train_step)/jvp(FlaxLlamaForCausalLMModule)/model",
    "layers",
    ["input_layernorm/mul", "self_attn/q_proj/dot_general", "self_attn/o_proj/dot_general", "add",
     "mlp/jit(silu)/mul", "mlp/down_proj/dot_general", "add"],
)  # fmt: skip
VIT = layers(
    "jit(train_step)/jvp(FlaxViTForImageClassificationModule)/vit/encoder",
    "layer",
    ["layernorm_before/mul", "attention/attention/query/dot_general", "attention/output/add",
     "intermediate/dense/dot_general", "intermediate/erf", "output/dense/dot_general"],
)  # fmt: skip
RESNET = [
    "jit(train_step)/jvp()/transpose",
    *[
        f"jit(train_step)/jvp(FlaxResNetForImageClassificationModule)/resnet/encoder/stages/{stage}"
        f"/layers/{i}/{part}"
        for stage, count in ((0, 2), (1, 3))
        for i in range(count)
        for part in ("layer/0/convolution/conv_general_dilated", "layer/0/normalization/mul",
                     "layer/1/convolution/conv_general_dilated", "layer/1/normalization/mul", "add")
    ],
    "jit(train_step)/jvp()/reduce_sum",
]  # fmt: skip
BART = [
    f"jit(train_step)/jvp(FlaxBartForConditionalGenerationModule)/model/{side}/layers/{i}/{part}"
    for side, parts in (
        ("encoder", ("self_attn/dot_general", "fc1/dot_general", "fc2/dot_general")),
        ("decoder", ("self_attn/dot_general", "encoder_attn/dot_general", "fc1/dot_general")),
    )
    for i in range(2)
    for part in parts
]
ROBERTA = layers(
    "jit(train_step)/jvp(FlaxRobertaForMaskedLMModule)/roberta/encoder",
    "layer",
    ["attention/self/query/dot_general", "attention/self/...hqk,...khd->...qhd/dot_general",
     "attention/output/dense/dot_general", "output/dropout/jit(_bernoulli)/jit(_uniform)/xor"],
)  # fmt: skip


@each(
    ("names", "cut", "expected"),
    [
        (GPT2, 1, "after embed_tokens"),
        (GPT2, 6, "after h/0"),
        (GPT2, 9, "after h/1/attn"),  # before the addition, which is in no scope but the layer's
        (GPT2, 8, "after h/1/attn/c_attn"),
        (GPT2, 16, "after h"),  # all layers end with the last one
        (LLAMA, 8, "after layers/0"),
        (LLAMA, 11, "after layers/1/self_attn"),
        (LLAMA, 12, "before layers/1/mlp"),
        (LLAMA, 13, "before layers/1/mlp/down_proj"),
        (VIT, 7, "after layer/0"),
        (VIT, 10, "after layer/1/attention"),
        (VIT, 11, "after layer/1/intermediate/dense"),
        (RESNET, 5, "after stages/0/layers/0/layer"),
        (RESNET, 6, "after stages/0/layers/0"),
        (RESNET, 11, "after stages/0"),
        (RESNET, 12, "after stages/1/layers/0/layer/0/convolution"),
        (BART, 3, "after encoder/layers/0"),
        (BART, 6, "after encoder"),
        (BART, 8, "after decoder/layers/0/encoder_attn"),
        (ROBERTA, 3, "after layer/0/attention/self"),
        (ROBERTA, 2, "after layer/0/attention/self/query"),
        (ROBERTA, 5, "after layer/0"),
        (ROBERTA, len(ROBERTA), "end"),
    ],
)
def test_cut_labels__public_models(names, cut, expected):
    assert label(names, cut) == expected


@each("names", [GPT2, LLAMA, VIT, RESNET, BART, ROBERTA])
@each("width", [48, 23])
def test_cut_labels__are_distinct_and_short(names, width):
    labels = cut_labels(chain(names), range(1, len(names) + 1), width)
    assert len(set(labels)) == len(names)
    assert max(len(x.removeprefix("after ")) for x in labels) <= width


def test_cut_labels__inside_a_scope_counts_the_instructions():
    names = [f"jit(f)/jvp(net)/layer_{i}/{x}" for i in (0, 1) for x in ("dot_general", "add") * 2]
    assert [label(names, cut) for cut in (1, 2, 3, 4)] == [
        "after layer_0/dot 1",
        "after layer_0/add 1",
        "after layer_0/dot 2",
        "after layer_0",
    ]


def test_cut_labels__plain_named_scopes():
    """Differentiation wraps the outermost scope, older versions of JAX a ``jit(main)`` besides."""
    for before in (
        "jit(step)/jvp(layer_{})",
        "jit(step)/jit(main)/jvp(layer_{})",
        "jit(f)/layer_{}",
    ):
        names = [f"{before.format(i)}/{part}/add" for i in (0, 1) for part in ("self", "ffn")]
        assert [label(names, cut) for cut in (1, 2)] == ["after layer_0/self", "after layer_0"]
    nested = [f"jit(step)/transpose(jvp(checkpoint(a/layer_{i})))/add" for i in (0, 1)]
    assert label(nested, 1) == "after layer_0"


def test_cut_labels__haiku():
    names = [
        f"jit(step)/jvp(transformer)/~/h{i}_{part}/~/linear/dot_general"
        for i in (0, 1)
        for part in ("attn", "mlp")
    ]
    assert [label(names, cut) for cut in (1, 2)] == ["after h0_attn", "after h0_mlp"]


def test_cut_labels__scopes_without_numbers_name_the_next_variable():
    """Equinox names every layer after its class."""
    names = ["jit(step)/jvp(eqx.nn.MLP)/eqx.nn.Linear/dot_general", "jit(step)/jvp(eqx.nn.MLP)/max"]
    reads = [f"layers/{i // 2}/weight" if i % 2 == 0 else "" for i in range(6)]
    found = [label(names * 3, cut, reads=reads) for cut in (1, 2, 3, 4)]
    assert found == [
        "1 pivot before layers/1/weight",
        "before layers/1/weight",
        "1 pivot before layers/2/weight",
        "before layers/2/weight",
    ]


def test_cut_labels__no_scopes_at_all():
    names = ["dot", "add", "dot", "add", "reduce"]
    reads = ["layers/0/q", "", "layers/1/q", "", ""]
    assert label(names, 2, reads=reads) == "before layers/1/q"
    assert label(names, 2, reads=["", "", "head/kernel", "", ""]) == "before head/kernel"
    sides = [f"{side}/layers/{i}/kernel" for side in ("encoder", "decoder") for i in (0, 1)]
    assert label(["dot"] * 4, 1, reads=sides) == "before encoder/layers/1/kernel"
    assert label(names, 3, reads=reads) == "after dot 2"  # no variable is read any more
    assert label(names, 1) == "after dot 1"
    assert label(names, 4) == "after add 2"


def test_cut_labels__scan():
    body = "jit(step)/jvp(model)/while{}/body/closed_call/block/{}/add"
    names = [body.format(f"[{i}]", part) for i in range(3) for part in ("attn", "mlp")]
    assert [label(names, cut) for cut in (2, 3)] == [
        "after model/[0]",
        "after model/[1]/block/attn",
    ]
    loop = ["jit(step)/jvp(model)/gather", "jit(step)/jvp(model)/while", "jit(step)/jvp(model)/dot"]
    assert [label(loop, cut) for cut in (1, 2)] == ["after model/gather", "after model/while"]


def test_cut_labels__measured_chains():
    names = ["conv1", "pool", "block/fc", "block/fc", "fc2"]
    assert [label(names, cut, source="") for cut in (1, 2, 3, 4)] == [
        "after conv1",
        "after pool",
        "after fc 1",
        "after block",
    ]


def test_cut_labels__too_long_a_name():
    long = [f"encoder/{'x' * 30}_{i}" for i in range(3)]
    (name, other) = cut_labels(chain(long, source=""), [1, 2], 12)
    assert {name, other} == {"after pivot 0", "after pivot 1"}  # cut off, they would be the same
    stages = RESNET[1:]
    assert label(stages, 11, 23) == "after stages/1/0/0/convoluti…"
    reads = ["", "", "", "encoder/layers/1/mlp/kernel"]
    assert label(["dot"] * 4, 1, 25, reads=reads) == "2 before layers/1/mlp/ke…"
    assert label(["a\x1b[2J/b", "c"], 1, source="") == "after a?[2J"
