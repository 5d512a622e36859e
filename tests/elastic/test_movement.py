"""What moves: the formula against single elements, published changes, and all assignments."""

from dataclasses import replace
from fractions import Fraction
from itertools import chain, combinations, permutations

import elastic_toys as toys
import numpy as np
import pytest
from cases import each

from parenvs.errors import ParenvsError
from parenvs.tasks.elastic.movement import (
    Costs,
    Degrees,
    Layout,
    State,
    atom_bytes,
    fetched,
    flows,
    least_placement,
    minimal,
    overlap,
    slices,
)
from parenvs.tasks.hybrid.model import HybridModel, shapes


def test_movement__overlap_counts_elements():
    """Of 840 elements, which all degrees up to 8 divide."""
    n = 840
    for one in range(1, 9):
        for other in range(1, 9):
            for shard in range(one):
                mine = set(range(shard * n // one, (shard + 1) * n // one))
                for its in range(other):
                    both = mine & set(range(its * n // other, (its + 1) * n // other))
                    exact = Fraction(len(both), n)
                    assert overlap(shard, one, its, other) == pytest.approx(float(exact), abs=1e-12)


@each("old", [(1, 1), (2, 3), (4, 2)])
@each("new", [(1, 4), (2, 1), (3, 2), (8, 3)])
def test_movement__new_shards_are_complete(old, new):
    """Every new shard takes its part of what is split, and all of what is not."""
    state = toys.state()
    before, after = Degrees(*old, 1), Degrees(*new, 2)
    size = slices(state, before, after)
    assert size.shape == (old[0] * old[1], new[0] * new[1])
    bounds = state.bounds(new[1])
    for p in range(new[1]):
        layers = slice(bounds[p], bounds[p + 1])
        wanted = state.split[layers].sum() / new[0] + state.whole[layers].sum()
        assert size[:, p * new[0] : (p + 1) * new[0]].sum(axis=0) == pytest.approx(wanted)


def test_movement__published_change_of_bert_large():
    """20 devices, PP2 MP4 DP2 to PP2 MP2 DP2: all, over the network, least of the busiest host."""
    model = HybridModel.of_shape(replace(shapes()["bert-large"], tied=False))
    old, new = Degrees(4, 2, 2), Degrees(2, 2, 2)
    taken = fetched(State.of(model), old, new)
    assert taken.bytes == pytest.approx(10.25e9, abs=5e6)
    assert taken.network_bytes == pytest.approx(5.11e9, abs=5e6)
    size = atom_bytes(State.of(model), 4)
    before, after = (Layout.of(State.of(model), degrees, 4, 4) for degrees in (old, new))
    sources = minimal(size, before.contents(5), before, after, np.arange(after.hosts))
    assert sources.network_bytes == taken.network_bytes
    assert sources.egress_bytes == pytest.approx(2.56e9, abs=5e6)
    free = minimal(size, before.contents(5), before, after)  # the second stage stays where it was
    assert free.network_bytes == free.egress_bytes == 0


def test_movement__published_seconds():
    """Tenplex's nine changes within the errors that the fit is said to have, in sample."""
    published = {
        Degrees(4, 2, 2): (8.5, 11.5, 24.2),
        Degrees(8, 2, 1): (7.4, 10.5, 20.2),
        Degrees(4, 4, 1): (4.6, 5.9, 10.8),
    }
    sizes = ((24, 2048), (32, 2560), (32, 4096))
    base = shapes()["gpt-7.5b"]
    for new, row in published.items():
        for seconds, (layers, hidden) in zip(row, sizes, strict=True):
            shape = replace(base, layers=layers, hidden=hidden, feed_forward=4 * hidden,
                            head_width=hidden // 32)  # fmt: skip
            state = State.of(HybridModel.of_shape(shape))
            moved = fetched(state, Degrees(4, 2, 1), new)
            predicted = Costs.fixed + Costs().moving(moved)
            assert -0.18 < predicted / seconds - 1 < 0.22


def least_of(had, asked, size):
    """The least largest egress, by all assignments; for each by Hall's condition on senders."""
    hosts = range(len(had))
    groups = list(chain.from_iterable(combinations(hosts, n) for n in range(1, len(had) + 1)))
    best = np.inf
    for place in permutations(hosts, len(asked)):
        demand = (asked * ~had[list(place)]).sum(axis=0) * size
        only = [demand[~had[[h for h in hosts if h not in g]].any(axis=0) & had.any(axis=0)].sum()
                / len(g) for g in groups]  # fmt: skip
        best = min(best, max(only))
    return best


@each("seed", range(4))
def test_movement__least_egress_is_that_of_all_assignments(seed):
    rng = np.random.default_rng(seed)
    had = rng.random((4, 6)) < 0.5
    asked = (rng.random((3, 6)) < 0.5) * rng.integers(1, 3, (3, 6))
    size = rng.uniform(1e9, 5e9, 6)
    place, egress, _ = least_placement(had, asked.astype(np.float32), size)
    assert egress == pytest.approx(least_of(had, asked, size), rel=1e-6)
    assert len(set(place)) == 3


@each(("old", "new"), [((2, 2, 1), (2, 1, 2)), ((2, 1, 2), (4, 1, 1)), ((1, 3, 1), (1, 2, 2))])
def test_movement__minimal_is_that_of_all_assignments(old, new):
    state, devices = toys.state(), 2
    before, after = Degrees(*old), Degrees(*new)
    grid = old[0] * new[0]
    layouts = [Layout.of(state, degrees, grid, devices) for degrees in (before, after)]
    size, on = atom_bytes(state, grid), layouts[0].contents(3)
    had, asked = on.any(axis=1), layouts[1].asked
    place, egress, _ = least_placement(had, asked, size)
    assert egress == pytest.approx(least_of(had, asked, size), abs=1e3)
    rough = minimal(size, on, *layouts)
    assert rough.egress_bytes >= egress - 1e3
    assert rough.network_bytes <= minimal(size, on, *layouts, place).network_bytes + 1e3


@each("exact", [True, False])
def test_flows__are_what_is_priced(exact):
    """Devices of two a host: all get what they miss, and the busiest host sends its price."""
    state, devices, hosts = toys.state(), 2, 3
    before, after = Degrees(2, 2, 1), Degrees(1, 3, 2)
    layouts = [Layout.of(state, degrees, 2, devices) for degrees in (before, after)]
    size, on = atom_bytes(state, 2), layouts[0].contents(hosts)
    place, rows = flows(size, on, layouts[1].held[: after.ranks], exact)
    found = toys.sent(size, rows, hosts * devices).reshape(hosts, devices, hosts, devices)
    found = found.sum((1, 3))
    away = found * (1 - np.eye(hosts))
    assignment, egress, _ = least_placement(on.any(axis=1), layouts[1].asked, size)
    moved = minimal(size, on, *layouts, assignment if exact else None)
    price = egress if exact else moved.egress_bytes
    assert away.sum(axis=1).max() == pytest.approx(price, rel=1e-6)
    assert away.sum() == pytest.approx(moved.network_bytes)
    assert found.sum() == pytest.approx(moved.bytes)
    got = on.reshape(hosts * devices, -1).astype(float)
    for row in rows:
        assert on.reshape(hosts * devices, -1)[row.source, row.atom]
        got[row.target, row.atom] += row.end - row.begin
    assert got[place][layouts[1].held[: after.ranks]] == pytest.approx(1)
    first, _ = flows(size, on, layouts[0].held[: before.ranks], exact, takers=2)
    assert sorted(first) == [0, 1, 2, 3]


def test_movement__bad_input():
    state, degrees = toys.state(), Degrees(1, 4, 2)
    layout, size = Layout.of(state, degrees, 1, 4), atom_bytes(state, 1)
    with pytest.raises(ParenvsError, match="1 hosts of 4 devices are too few: 2"):
        flows(size, layout.contents(2), layout.held, takers=1)
