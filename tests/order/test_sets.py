import numpy as np
import pytest
from cases import each

from parenvs.datasets.banks import Bank
from parenvs.datasets.order import drawing as orders
from parenvs.datasets.order import named
from parenvs.datasets.order import sets as order_sets
from parenvs.datasets.order.named import BANKS, bank
from parenvs.errors import ParenvsError
from parenvs.shipped import data_folder
from parenvs.tasks.order.load import ORDER_SETS, ordering_steps


@each("tier", orders.ALL_TIERS)
@each("ranges", [orders.INSIDE, orders.OUTSIDE])
def test_draw_step__has_the_size_and_the_ranges_of_its_tier(tier, ranges):
    step = orders.draw_step(np.random.default_rng(0), tier, ranges)
    size = orders.ALL_TIERS[tier]
    assert (len(step.layers), len(step.squares)) == (size.stages, size.micro_batches)
    assert step.shape.name in size.models
    assert step.shape.sequence in ranges.tokens
    assert all(ranges.speeds[0] <= x <= ranges.speeds[1] for x in step.cluster.speeds)
    assert all(step.shape.sequence <= x <= step.shape.sequence**2 for x in step.squares)


def test_draw_ordering__is_deterministic_and_differs_by_seed():
    one, same, other = (
        orders.draw_ordering(np.random.default_rng(seed), "p4-m8").fingerprint for seed in (0, 0, 1)
    )
    assert one == same != other


def test_draw_lengths__are_enough_and_no_longer_than_a_micro_batch():
    lengths = orders.draw_lengths(np.random.default_rng(0), 10**6, 65536)
    assert lengths.sum() >= 10**6
    assert lengths.min() >= orders.SHORTEST
    assert lengths.max() <= 65536


def test_tier_of__unknown():
    with pytest.raises(ParenvsError, match="did you mean 'p8-m16'"):
        orders.tier_of("p8-m15")


@each("name", ORDER_SETS)
def test_order_sets__are_what_the_command_makes(name, tmp_path):
    assert order_sets.main([name, "--out", str(tmp_path)]) == 0
    shipped = data_folder() / f"{name}.json"
    assert (tmp_path / f"{name}.json").read_bytes() == shipped.read_bytes()
    count, _, tiers = order_sets.SETS[name]
    assert len(ordering_steps(name)) == len(tiers) * count


def test_order_sets__bad_arguments(capsys):
    assert order_sets.main(["order-training"]) == 2
    assert "no set 'order-training'" in capsys.readouterr().err


@each("tier", BANKS)
def test_banks__are_the_numbered_problems(tier):
    kept = bank(tier)
    assert len(kept) == len(kept.arrays["squares"]) == BANKS[tier]
    for number in (0, len(kept) // 2, len(kept) - 1):
        drawn = kept.row(number)
        assert all(np.array_equal(kept[number][key], drawn[key]) for key in drawn)


def test_banks__share_no_problem_with_sets():
    """The squared lengths of a step's documents tell it from others."""
    shipped = {tuple(step.squares) for name in ORDER_SETS for step in ordering_steps(name).values()}
    for tier in BANKS:
        assert shipped.isdisjoint(map(tuple, bank(tier).arrays["squares"].tolist()))


def test_banks__one_that_does_not_ship_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("PARENVS_CACHE", str(tmp_path))
    made = []

    def row(number):
        made.append(number)
        return {"number": np.array(number)}

    for _ in range(2):
        assert Bank("squares", 3, row)[2] == {"number": 2}
    assert made == [0, 1, 2, 0, 0] and [x.name for x in (tmp_path / "banks").iterdir()] == [
        "squares.npz"
    ]
    path = tmp_path / "banks" / "squares.npz"
    whole = path.read_bytes()
    packed = whole.index(b".npy") + 30
    for content in (b"PK", whole[:-9], whole[:packed] + b"\xff" * 9 + whole[packed + 9 :], b""):
        path.write_bytes(content)
        with pytest.raises(ParenvsError, match=r"squares\.npz: damaged .*; remove it"):
            Bank("squares", 3, row)[0]
    np.savez(path, number=np.array(2))
    with pytest.raises(ParenvsError, match=r"squares\.npz: expected 3 problems; remove it"):
        Bank("squares", 3, row)[0]
    for arrays in (
        {"other": np.arange(3)},
        {"number": np.ones(3)},
        {"number": np.eye(3, dtype=int)},
    ):
        np.savez(path, **arrays)
        with pytest.raises(ParenvsError, match=r"squares\.npz: of other problems; remove it"):
            Bank("squares", 3, row)[0]


def test_banks__rows_may_differ_in_length(tmp_path, monkeypatch):
    monkeypatch.setenv("PARENVS_CACHE", str(tmp_path))

    def row(number):
        return {"number": np.array(number), "each": np.arange(number * 2).reshape(number, 2)}

    for _ in range(2):  # made, and read from the cache
        bank = Bank("steps", 4, row)
        for number in range(4):
            assert bank[number]["number"] == number
            np.testing.assert_array_equal(bank[number]["each"], row(number)["each"])
    np.savez(tmp_path / "banks" / "steps.npz", number=np.arange(4), each=np.ones((4, 2)))
    with pytest.raises(ParenvsError, match=r"steps\.npz: of other problems; remove it"):
        Bank("steps", 4, row)[0]


def test_banks__bad_arguments(capsys):
    assert named.main(["p8-m17"]) == 2
    assert "no bank 'p8-m17' (did you mean 'p8-m16'?)" in capsys.readouterr().err
