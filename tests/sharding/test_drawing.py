import numpy as np
import pytest

from parenvs.datasets.sharding import problems as intra_op
from parenvs.datasets.sharding.problems import (
    NODES,
    RANGES,
    SETS,
    STRATEGIES,
    drawn,
    of_set,
    set_names,
)
from parenvs.errors import ParenvsError
from parenvs.tasks.sharding.turns import board_of


@pytest.mark.thorough
def test_drawn__mesh_is_free_and_its_limit_is_felt():
    for number in (1, 2, 3):
        board = board_of(drawn("mesh", number))
        assert NODES[0] <= len(board) <= NODES[1]
        assert board.sizes.max() <= STRATEGIES["mesh"]
        assert board.is_free
        assert len(board.reduced.slack)
        spans = zip(board.offset[:-1].tolist(), board.offset[1:].tolist(), strict=True)
        heaviest = np.array([int(board.mass[a:b].argmax()) for a, b in spans])
        assert board.remaining_of(heaviest).min() < 0 <= board.remaining_of(board.lean).min()


def test_drawn__classes_forbid_and_need_a_witness():
    board = board_of(drawn("classes", 4))
    assert not board.is_free
    assert board.reduced.legal(board.witness)
    assert board.reduced.legal(board.greedy)
    assert any(other.forbids for others in board.neighbors for other in others)


def test_drawn__unknown_families():
    with pytest.raises(ParenvsError, match="unknown family 'meshes'; known: mesh, classes"):
        drawn("meshes", 0)


def test_sets__hold_what_the_generator_draws(monkeypatch):
    for name, (ranges, count, _) in SETS.items():
        assert ranges in RANGES
        assert len(set_names(name)) == 2 * count
    problem = of_set("intra-op-test/mesh-001")
    assert problem.name == problem.instance == "intra-op-test/mesh-001"
    with pytest.raises(ParenvsError, match="unknown problem 'intra-op-test/mesh-99'"):
        of_set("intra-op-test/mesh-99")
    changed = {"intra-op-test/mesh-001": {"fingerprint": "sha256:0"}}
    monkeypatch.setattr(intra_op, "references", lambda file: changed)
    with pytest.raises(ParenvsError, match="draws another problem now than when the set was made"):
        of_set("intra-op-test/mesh-001")
