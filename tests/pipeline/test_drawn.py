"""Numbered problems and their pool: the same whatever was made before, where and by whom."""

import time

import gymnasium as gym
import numpy as np
import pytest
from batches import assert_same, both, drawn, modes
from cases import each, slow
from scipy.stats import ks_2samp

import parenvs
from parenvs.datasets.pipeline import generators, sequence
from parenvs.datasets.pipeline.generators import ratios
from parenvs.datasets.pipeline.sequence import number_of, problem_of
from parenvs.errors import ParenvsError
from parenvs.tasks.pipeline.game import pool as pools
from parenvs.tasks.pipeline.game.plan import PipelinePlanEnv, PipelinePlanVectorEnv

FIXED = [7055, 2495, 4141, 4158, 2032, 2032]
PROBLEM = ("uniform", 2, 95, 0.03423735499382019)


@pytest.fixture
def small(monkeypatch):
    """A window of few problems, which moves fast, in a ring that is hardly larger."""
    monkeypatch.setattr(sequence, "WINDOW", 12)
    monkeypatch.setattr(sequence, "PACE", 1)
    monkeypatch.setattr(pools, "CAPACITY", 15)


def test_drawn__numbers_are_fixed():
    """Draw version 2: these numbers may change with another version only."""
    numbers = number_of([0, 0, 0, 1, 7, 2**64 + 7], [0, 1, 5000, 0, 3, 3])
    assert numbers.tolist() == FIXED
    turns = np.arange(2000)
    numbers = number_of(np.zeros(2000, dtype=np.uint64), turns)
    begin = turns // sequence.PACE
    assert (numbers >= begin).all()
    assert (numbers < begin + sequence.WINDOW).all()
    # Uniform in the window, and other seeds have other numbers.
    assert ks_2samp((numbers - begin) / sequence.WINDOW, np.linspace(0, 1, 4001)).pvalue > 0.01
    assert (number_of([1] * 2000, turns) == numbers).mean() < 0.01


def test_drawn__problems_are_fixed():
    """The problem of a number, by a checksum of its chain."""
    problem = problem_of(17, None, "inside")
    assert problem.name == "generated-2/inside/any/17"
    profile = problem.pipeline.profile
    found = (problem.family, problem.stages, len(profile), float(profile.forward.sum()))
    assert found == PROBLEM
    assert problem_of(17, "cnn", "inside").family == "cnn"
    assert problem_of(3, None, "outside").name == "generated-2/outside/any/3"


@pytest.mark.thorough
def test_drawn__same_distribution():
    """Problems of both versions are drawn alike: ratios, stages, pivots, devices, micro-batches."""
    rng = np.random.default_rng(0)
    old = [generators.draw(rng).pipeline for _ in range(150)]
    new = [problem_of(number, None, "inside").pipeline for number in range(150)]
    figures = [
        *(lambda p, i=i: ratios(p)[i] for i in range(4)),
        lambda p: p.stages,
        lambda p: len(p.profile),
        lambda p: p.cluster.devices,
        lambda p: p.micro_batches,
    ]
    for figure in figures:
        assert ks_2samp([figure(p) for p in old], [figure(p) for p in new]).pvalue > 0.001


def test_drawn__names_make_problems_again():
    """Wherever an instance is taken."""
    env = PipelinePlanEnv(draw=2, family="cnn", ranges="outside")
    seen, info = env.reset(seed=5)
    name = info["instance"]
    assert name.startswith("generated-2/outside/cnn/")
    resets = [PipelinePlanEnv(instance=name).reset()]
    resets.append(PipelinePlanEnv().reset(options={"instance": name}))
    for again in resets:
        assert_same(again[0], seen)
        assert again[1]["instance"] == name
    assert parenvs.problem(name).profile.fingerprint == env.plan().fingerprint
    for wrong in ("generated-2/outside/cnn", "generated-2/here/cnn/1", "generated-2/inside/cnm/1"):
        with pytest.raises(ParenvsError, match=r"unknown problem .*like generated-2/inside/any/17"):
            PipelinePlanEnv(instance=wrong)
    with pytest.raises(ParenvsError, match="stages: drawn problems have settings"):
        PipelinePlanEnv(instance=name, stages=3)


@pytest.mark.thorough
def test_drawn__kth_problem_of_a_seed():
    """It is the same in a single environment, after other seeds, and in any place of a batch."""
    env = PipelinePlanEnv(draw=2)
    names = [env.reset(seed=5)[1]["instance"], *(env.reset()[1]["instance"] for _ in range(3))]
    assert names == [sequence.name_of(j, None, "inside") for j in number_of([5] * 4, range(4))]
    env.reset(seed=6)
    assert env.reset(seed=5)[1]["instance"] == names[0]
    batch = PipelinePlanVectorEnv(3, draw=2)
    for turn in range(4):
        infos = batch.reset(seed=[9, 5, None] if turn == 0 else None)[1]
        assert infos["instance"][1] == names[turn]
    assert batch.plan(1).instance == names[3]
    repeated = PipelinePlanVectorEnv(2, draw=2, repeat=2)
    seen = [repeated.reset(seed=5 if turn == 0 else None)[1]["instance"][0] for turn in range(4)]
    assert seen == [names[0], names[0], names[1], names[1]]


@pytest.mark.thorough
@modes
@pytest.mark.parametrize("copy", [True, *slow(False)])
def test_drawn__as_single_environments(small, monkeypatch, mode, copy):
    """With conflicts for slots, illegal actions, named problems of one episode, and repeats."""
    monkeypatch.setattr(pools, "CAPACITY", 7)
    kwargs = {"draw": 2, "repeat": 1 if copy else 2}
    batched, single = both(PipelinePlanVectorEnv, kwargs, 6, mode, copy=copy)
    rng, conflicts = np.random.default_rng(0), 0
    assert_same(batched.reset(seed=3), single.reset(seed=3))
    for turn in range(60):
        conflicts += (batched.game.pool.number[7:] >= 0).sum()
        outcome = batched.step(actions := drawn(batched.action_masks(), rng, 0.05))
        assert_same(outcome, single.step(actions))
        over = outcome[2]
        if mode == "Disabled" and over.any():
            assert_same(*(e.reset(options={"reset_mask": over.copy()}) for e in (batched, single)))
        if turn % 17 == 9 and mode != "Disabled":
            options = {"instance": "plan-outside/cnn-003", "reset_mask": rng.random(6) < 0.4}
            options["reset_mask"][0] = True
            assert_same(*(e.reset(options=dict(options)) for e in (batched, single)))
    assert batched.game.pool.used.sum() == 6
    assert conflicts > 0  # some had slots of their own


def test_drawn__files_are_written_once(small, tmp_path, monkeypatch):
    """Equal problems, mapped from files that episodes do not change."""
    kwargs = {"draw": 2, "family": "cnn"}
    mapped = PipelinePlanVectorEnv(4, pool=tmp_path, **kwargs)
    (place,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    before = {path.name: path.read_bytes() for path in place.iterdir() if path.name == "number.npy"}
    assert mapped.game.pool.made == 0
    assert type(mapped.game.pool.reach) is np.ndarray  # a memmap's rows are slow to take
    monkeypatch.setattr(pools, "_fill", None)  # they are not written again
    batches = [mapped, PipelinePlanVectorEnv(4, pool=tmp_path, **kwargs)]
    batches.append(PipelinePlanVectorEnv(4, **kwargs))
    rng = np.random.default_rng(0)
    assert_same(*(batch.reset(seed=1) for batch in batches[:2]))
    batches[2].reset(seed=1)
    for _ in range(40):
        actions = drawn(mapped.action_masks(), rng, 0.02)
        outcomes = [batch.step(actions) for batch in batches]
        assert_same(outcomes[0], outcomes[1])
        assert_same(outcomes[0], outcomes[2])
    assert mapped.game.pool.made > 0  # the window has moved
    assert {name: (place / name).read_bytes() for name in before} == before
    (place / "reach.npy").write_bytes(b"")
    with pytest.raises(ParenvsError, match=r"not a pool of problems .*; remove it"):
        PipelinePlanVectorEnv(4, pool=tmp_path, **kwargs)


@pytest.mark.thorough
def test_drawn__refilled_by_another_process(small, monkeypatch):
    """The problems are the same, and the process makes those that come next."""
    monkeypatch.setattr(pools, "PART", 4)
    refilled, plain = (
        PipelinePlanVectorEnv(3, "SameStep", draw=2, family="uniform", refill=refill)
        for refill in (True, False)
    )
    rng = np.random.default_rng(0)
    assert_same(refilled.reset(seed=1), plain.reset(seed=1))
    taken = []
    put_rows = refilled.game.pool.put_rows
    monkeypatch.setattr(
        refilled.game.pool,
        "put_rows",
        lambda numbers, rows: (taken.append(numbers[0]), put_rows(numbers, rows)),
    )
    patience = time.monotonic() + 60
    while len(taken) < 2 and time.monotonic() < patience:
        actions = drawn(refilled.action_masks(), rng)
        assert_same(refilled.step(actions), plain.step(actions))
        time.sleep(0.02)
    refilled.close()
    assert taken[:2] == [12, 16]


@each(
    ("kwargs", "words"),
    [
        ({"draw": 3}, "draw must be one of 1, 2, not 3"),
        ({"draw": 2, "instance": "plan-test"}, "draw: no problems are generated here"),
        ({"pool": "here"}, "pool, refill: need draw=2"),
        ({"refill": True}, "pool, refill: need draw=2"),
    ],
)
def test_drawn__errors(kwargs, words):
    with pytest.raises(ParenvsError, match=words):
        gym.make_vec("PipelinePlan-v0", num_envs=2, **kwargs)
