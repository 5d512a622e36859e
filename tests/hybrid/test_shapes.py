"""Shapes: names that have a graph, too, are the same model; blocks that alternate."""

from dataclasses import replace

import pytest
from cases import each

from parenvs.errors import UnknownInstanceError
from parenvs.graph.graph import Role
from parenvs.instances import load_graph, names
from parenvs.tasks.hybrid.model import shapes
from parenvs.tasks.hybrid.shape import TransformerShape

BOTH = sorted(set(names()) & set(shapes()))


@pytest.mark.thorough
@pytest.mark.parametrize("name", BOTH)
def test_shapes__as_many_parameters_and_flops_as_the_graph(name):
    """Vocabularies may be padded in the shape: 51,200 rows for GPT-3's 50,257.

    The shape counts matrix products alone; the graph elementwise instructions, too, and the
    products of attention that run again in the backward pass where it goes through chunks.
    """
    graph, shape = load_graph(name), shapes()[name]
    variables = graph.parameter_tensor[graph.parameter_role == Role.VARIABLE]
    parameters = graph.tensor_bytes[variables].sum() / 4  # fp32 master weights
    assert parameters == pytest.approx(shape.parameters, rel=1e-4)
    assert 1 <= graph.total_flops / shape.flops(graph.batch_size) < 1.05


def test_shapes__published_totals_to_the_last_parameter():
    """Those of the released weights; Llama 4's less one image encoder, the same in both."""
    for name, total in (
        ("deepseek-v3", 671_026_419_200), ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560), ("gpt-oss-20b", 20_914_757_184),
        ("gpt-oss-120b", 116_829_156_672), ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_620_634_112), ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496), ("llama3-405b", 405_853_388_800),
        ("llama2-7b", 6_738_415_616), ("llama2-70b", 68_976_648_192),
    ):  # fmt: skip
        assert shapes()[name].parameters == total, name
    images = {
        total - shapes()[name].parameters
        for name, total in (
            ("llama4-scout", 108_641_793_536), ("llama4-maverick", 401_583_781_376),
        )
    }  # fmt: skip
    assert images == {871_932_416}


def alternating(**numbers):
    return TransformerShape(
        "alternating", 7, 512, 8, 256, 4096, gated=True, dropout=False, bias=False, tied=False,
        feed_forward=1024, **{"experts": 4, "active": 2, **numbers},
    )  # fmt: skip


def test_shapes__blocks_alternate_between_dense_and_experts():
    """Parameters and FLOPs are sums over blocks of two shapes that have one kind each."""
    shape = alternating(experts_every=3, dense_feed_forward=2048)
    dense, expert = shape.kinds
    assert shape.kind_of == (0, 0, 1, 0, 0, 1, 0)
    assert (dense.experts, dense.feed_forward, expert.experts, expert.feed_forward) == (
        1, 2048, 4, 1024
    )  # fmt: skip
    ends = shape.hidden * (2 * shape.vocabulary + 1)
    blocks = 5 * sum(dense.block_parameters) + 2 * sum(expert.block_parameters)
    assert shape.parameters == blocks + ends
    for count in (lambda x: x.flops(3), lambda x: x.flops(3, True), lambda x: x.token_flops(3)):
        one, seven = count(replace(dense, layers=1)), count(replace(dense, layers=7))
        head = one - (seven - one) / 6
        own = 5 * (seven - head) / 7 + 2 * (count(alternating()) - head) / 7 + head
        assert count(shape) == pytest.approx(own, rel=1e-12)


@each(
    ("numbers", "words"),
    [
        ({"experts": 1, "active": 1, "experts_every": 2}, "need experts"),
        ({"dense_feed_forward": 2048}, "needs experts_every"),
        ({"experts_every": 0}, "'experts_every' must be a whole number from 1, not 0"),
    ],
)
def test_shapes__blocks_that_cannot_alternate(numbers, words):
    with pytest.raises(UnknownInstanceError, match=words):
        alternating(**numbers)
