"""Tensor parallelism of graphs: Megatron's pattern by dimension classes, and its collectives."""

import numpy as np
import pytest
from cases import each

from parenvs.cluster import Cluster
from parenvs.graph.graph import Phase
from parenvs.tasks.hybrid.graph_work import Splitting
from parenvs.tasks.hybrid.layers import Split
from parenvs.tasks.hybrid.model import load_model
from parenvs.tasks.hybrid.stack import STACKS

TOKENS, WIDTH = 64 * 512, 1024  # of BERT-48's batch


def sums(model, label, tp):
    rows = model.chain.work.rows(label, tp, False)
    return [(phase, float(size[0]), len(behind)) for phase, size, behind in rows.sums]


@pytest.mark.thorough
def test_splitting__a_layer_of_bert_has_four_all_reduces():
    """Two forward, two backward; those hide behind one product, and behind queries', keys' and
    values'."""
    model = load_model("bert-48")
    stream = float(TOKENS * WIDTH)
    for label in (1, 20, 48):
        assert sums(model, label, 8) == [
            (Phase.FORWARD, stream, 0), (Phase.FORWARD, stream, 0),
            (Phase.BACKWARD, stream, 1), (Phase.BACKWARD, stream, 3),
        ]  # fmt: skip
    assert sums(model, 20, 1) == []


def test_splitting__a_decoder_layer_of_t5_has_six():
    """Attention to itself, to the encoder, and the network."""
    found = sums(load_model("t5-base"), 20, 4)
    assert [phase for phase, _, _ in found] == [Phase.FORWARD] * 3 + [Phase.BACKWARD] * 3


@each(("tp", "split"), [(2, True), (4, True), (8, False)])
def test_splitting__ranks_that_do_not_divide_the_heads_leave_attention_whole(tp, split):
    """T5-base has 12 heads: among 8 ranks the network is split, attention is not."""
    model = load_model("t5-base")
    assert model.reasons_against_tp(tp) is None
    whole, shared = (model.kinds[1].parameters(Split(n, 1.0))[0] for n in (1, tp))
    network, attention = 2 * 768 * 3072 + 3072, 4 * 768 * 768
    expected = whole - network * (1 - 1 / tp) - (attention * (1 - 1 / tp) if split else 0)
    assert float(shared) == pytest.approx(expected, rel=1e-3)  # heads' biases of positions
    phases = [phase for phase, _, _ in sums(model, 5, tp)]
    assert len(phases) == (4 if split else 2)


@pytest.mark.thorough
def test_splitting__reasons():
    model = load_model("bert-48")
    assert model.reasons_against_tp(1) is model.reasons_against_tp(16) is None
    assert "tp 5 divides none of the widths" in model.reasons_against_tp(5)
    assert "tp 32" not in str(model.reasons_against_tp(32))  # heads stay whole, networks do not


def test_splitting__padding_takes_any_number_of_ranks():
    program = load_model("t5-base").chain.program
    padded = Splitting(program, uneven="pad")
    assert padded.reason_against(8) is None
    shares = padded.tensor_shares(8)
    assert 2 / 12 in shares  # 12 heads on 8 ranks


def test_splitting__words_of_the_head_are_split_where_ranks_divide_them():
    """30,522 words: among 2 ranks, not among 4."""
    model = load_model("bert-48")
    held = [float(model.head.parameters(Split(tp, 1.0))[0]) for tp in (1, 2, 4)]
    assert held[0] - held[1] == pytest.approx(30522 * 1024 / 2, rel=0.001)
    assert held[2] == held[0]


def test_splitting__sequence_parallelism_shares_what_is_not_split():
    machine = STACKS["megatron-2022"].machine(Cluster.parse("1x8:a100"), "bf16")
    layer = load_model("bert-48").kinds[1]
    plain, shared = Split(8, 8.0), Split(8, 8.0, sequence_parallel=True)
    kept = [float(layer.saved_bytes(machine, split, "full")) for split in (Split(1, 8.0), shared)]
    assert kept[1] == pytest.approx(kept[0] / 8)
    seconds = [layer.seconds(machine, split) for split in (plain, shared)]
    assert float(seconds[1].forward) < float(seconds[0].forward)
    assert float(seconds[1].forward_exchange) == float(seconds[0].forward_exchange)
    # An all-reduce is an all-gather, which is exposed, and a reduce-scatter, which may hide.
    few = [layer.seconds(machine, split._replace(tp=2)) for split in (plain, shared)]
    assert float(few[1].backward_exchange) > float(few[0].backward_exchange)


def test_splitting__more_ranks_hold_and_do_less():
    machine = STACKS["megatron-2022"].machine(Cluster.parse("1x8:a100"), "bf16")
    for name, kind in (("t5-base", 1), ("vgg-19", 5), ("bert-48", 1)):
        layer = load_model(name).kinds[kind]
        split = Split(np.array([1, 2, 4]), 16.0)
        for figures in (
            layer.parameters(split)[0],
            layer.saved_bytes(machine, split, "none"),
            layer.seconds(machine, split).forward,
            layer.seconds(machine, split).backward,
        ):
            assert (np.diff(figures) < 0).all(), name
