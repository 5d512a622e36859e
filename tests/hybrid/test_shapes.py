"""Names with a graph and a shape: both are the same model."""

import pytest

from parenvs.graph.graph import Role
from parenvs.instances import load_graph, names, shapes

BOTH = sorted(set(names()) & set(shapes()))


def test_shapes__names_with_both():
    assert BOTH == ["gpt3-175b", "llama3-70b", "llama3-8b", "mixtral-8x7b"]


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
