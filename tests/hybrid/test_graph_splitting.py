"""Tensor parallelism of graphs: Megatron's pattern by dimension classes, and its collectives."""

import pytest
from cases import each

from parenvs.cluster import Cluster
from parenvs.graph.graph import Phase
from parenvs.tasks.hybrid.layers import Split
from parenvs.tasks.hybrid.model import load_model
from parenvs.tasks.hybrid.stack import STACKS

TOKENS, WIDTH = 64 * 512, 1024  # of BERT-48's batch


def sums(model, label, tp):
    rows = model.work.rows(label, tp, False)
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
