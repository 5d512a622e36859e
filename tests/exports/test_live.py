"""A state moves between processes: every number in place, and bytes as priced."""

import json
from functools import cache

import elastic_toys as toys
import numpy as np
import pytest
from cases import each

from parenvs.exports.checkpoint import PARAMETER, Files, Tensor, elements
from parenvs.exports.torch import torch_plan
from parenvs.tasks.elastic.movement import (
    Layout,
    State,
    atom_bytes,
    flows,
    least_placement,
    minimal,
)
from parenvs.tasks.hybrid.model import HybridModel

pytestmark = pytest.mark.thorough

for _package in ("torch", "jax"):
    pytest.importorskip(_package)

ADAM = {PARAMETER: "float32", "exp_avg": "float32", "exp_avg_sq": "float32"}
BYTES = 12


@pytest.fixture(scope="module")
def exported_plans(plans, graph):
    return cache(lambda name: torch_plan(plans[name], graph))


@pytest.fixture(scope="module")
def state(graph):
    return State.of(HybridModel.of_graph(graph), BYTES)


def priced(state, old, new, hosts, exact, devices=1):
    """Bytes from each process to each, by the formula's layers."""
    grid = np.lcm(old.tensor, new.tensor)
    before, after = (Layout.of(state, x, grid, devices) for x in (old, new))
    size = atom_bytes(state, grid)
    _, rows = flows(size, before.contents(hosts), after.held[: new.ranks], exact)
    return toys.sent(size, rows, hosts * devices)


@pytest.mark.slow
@each("exact", [True, False])
@each(("old", "new"), [("T2 P2", "P2 D2"), ("P2 D2", "T4"), ("D2", "T2 P2")])
def test_cells__are_priced_as_layers_are(graph, plans, exported_plans, state, old, new, exact):
    """Cut by cut of every tensor, the busiest sends what the formula of the movement says."""
    from parenvs.exports.state import cells_of

    pair = plans[old], plans[new]
    exported, files = [exported_plans(x) for x in (old, new)], [Files.of(x) for x in pair]
    tensors = {name: Tensor(x, ADAM, {}) for name, x in exported[0].shapes.items()}
    cells, held = cells_of(exported, files, tensors, graph)
    size = np.array([elements(x.box) * BYTES for x in cells], dtype=float)
    on = np.zeros((4, 1, len(cells)), dtype=bool)
    on[: len(held[0]), 0] = held[0]
    place, rows = files[1].shards.flows(size, on, held[1], exact)
    found = toys.sent(size, rows, 4)
    degrees = [x.degrees for x in files]
    assert found == pytest.approx(priced(state, *degrees, 4, exact), abs=1e-3)
    grid = np.lcm(degrees[0].tensor, degrees[1].tensor)
    layouts = [Layout.of(state, x, grid, 1) for x in degrees]
    atoms, there = atom_bytes(state, grid), layouts[0].contents(4)
    assignment, egress, _ = least_placement(there.any(axis=1), layouts[1].asked, atoms)
    moved = minimal(atoms, there, *layouts, assignment if exact else None)
    price = egress if exact else moved.egress_bytes
    assert found.sum(axis=1).max() == pytest.approx(price, abs=1)
    assert found.sum() == pytest.approx(moved.network_bytes)
    got = on[:, 0].copy()
    for row in rows:
        assert on[row.source, 0, row.atom]
        got[row.target, row.atom] = True
    assert (got[place] >= held[1]).all()


@pytest.mark.slow
def test_move__trains_on_as_one_process(moving, graph, plans, state, tmp_path):
    """Four processes, three changes of all degrees: losses of one, and bytes sent as priced."""
    import live_work

    graph.save(tmp_path / "net.npz")
    names, steps = ("T2 P2", "P2 D2", "D4 ZeRO 2", "T2"), 2
    job = {
        "folder": str(tmp_path), "graph": str(tmp_path / "net.npz"), "steps": steps,
        "plans": [(plans[x], torch_plan(plans[x], graph)) for x in names],
    }  # fmt: skip
    moving.example.start(4, job, live_work.train)
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)]
    for found in told[0]["moves"]:
        assert found["sent"] == found["planned"]
    first = priced(state, *(Files.of(plans[x]).degrees for x in names[:2]), 4, True)
    assert told[0]["moves"][0]["sent"] == first.tolist()
    single = moving.alone(len(names) * steps)
    for rank in told:
        for k, name in enumerate(names):
            own = [value for number, value in rank["losses"] if number == k]
            assert own in ([], pytest.approx(single[k * steps :][:steps], rel=1e-5)), name
    assert sum(len(rank["losses"]) for rank in told) == (4 + 4 + 4 + 2) * steps
