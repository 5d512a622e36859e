"""The words for classes: chains of links, against the graph."""

from collections import deque

import partition_toys as toys
import pytest

from parenvs.tasks.partition.words import Explainer


def test_explainer__chain_is_a_shortest_one():
    """Against a breadth-first search written out, and its instructions tie the dimensions."""
    problem = toys.shipped("vgg-19")
    classes = problem.classes
    links, at = classes.factors.links.tolist(), classes.factors.link_at.tolist()
    near: dict[int, list[int]] = {}
    pairs: dict[frozenset, set[int]] = {}
    for (one, other), instruction in zip(links, at, strict=True):
        near.setdefault(one, []).append(other)
        near.setdefault(other, []).append(one)
        pairs.setdefault(frozenset((one, other)), set()).add(instruction)
    graph, words = problem.graph, Explainer(classes)
    start = int(graph.dim_offset[problem.tensor["fc1/bias"]])
    end = int(graph.dim_offset[problem.tensor["fc2/kernel"]])
    far, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        for other in near[here]:
            if other not in far:
                far[other] = far[here] + 1
                queue.append(other)
    chain = words.chain(start, end)
    assert 0 < len(chain) <= far[end]
    # The instructions lead from the start to the end, one or more links each.
    reached = {start}
    for instruction in chain:
        step = [tuple(pair) for pair, found in pairs.items() if instruction in found]
        while True:
            more = {y for x, y in [*step, *(p[::-1] for p in step)] if x in reached} - reached
            if not more:
                break
            reached |= more
    assert end in reached
    assert words.chain(start, start) == []
    with pytest.raises(ValueError, match="different classes"):
        words.chain(start, int(graph.dim_offset[problem.tensor["images"]]))
