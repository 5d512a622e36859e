"""Networks that ship: as PyTorch has them, and the planner ``learned``."""

import gymnasium as gym
import numpy as np
import pytest
from cases import each

import parenvs
from parenvs.agents.learning import network
from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.network import LOWEST, WEIGHTS, Network, beam, decode, file_of, shipped
from parenvs.agents.learning.options import LEARNED
from parenvs.agents.learning.trainer import train
from parenvs.agents.pipeline.teacher import teach
from parenvs.core.game import Stream
from parenvs.core.registry import environments
from parenvs.core.sets import set_of
from parenvs.core.task import late
from parenvs.errors import ParenvsError

PLACES = {
    "HybridPlan-v2": ("hybrid-test/llama-000", {}),
    "PipelinePlan-v0": ("plan-test/uniform-000", {}),
    "PipelineImprove-v0": ("plan-s32-validation/uniform-000", {}),
    "ElasticPlan-v2": ("elastic-validation/bulk-gpt-1.5b-001", {}),
}
"""Environment -> a problem of its task."""


@pytest.fixture
def arrays():
    """Weights of a network of 3 columns, 2 of context, 4 wide."""
    rng, wide = np.random.default_rng(0), (4, 4)
    shapes = ((), (4, 2), (4,), (4, 3), wide, (4,), (4, 10), (4,), (4, 8), (4,), (1, 4), (1,))
    return {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in zip(WEIGHTS, shapes, strict=True)
    }


def turns(count, actions, legal, rng):
    """Drawn observations of rows with 3 columns, the first ``legal`` actions legal."""
    mask = np.arange(actions) < np.asarray(legal)[:, None]
    rows = rng.normal(size=(count, actions, 3)).astype(np.float32) * mask[..., None]
    context = rng.normal(size=(count, 2)).astype(np.float32)
    return {"actions": rows, "context": context, "action_mask": mask.astype(np.int8)}


def test_network__rates_as_pytorch_does(arrays):
    torch = pytest.importorskip("torch")
    from gymnasium import spaces

    from parenvs.agents.learning.net import Lens, RowsNet

    seen = turns(5, 6, [6, 1, 3, 4, 2], np.random.default_rng(1))
    boxes = {name: spaces.Box(-9, 9, x.shape[1:], x.dtype) for name, x in seen.items()}
    lens = Lens(spaces.Dict(boxes), spaces.Discrete(6))
    net = RowsNet(lens, width=4)
    own = {name: torch.from_numpy(np.array(x)) for name, x in arrays.items()}
    net.load_state_dict({**net.state_dict(), **own})
    with torch.no_grad():
        wanted = net(lens(seen, {}))[0][..., 0].numpy()
    found, legal = Network(arrays).rate(seen), seen["action_mask"] > 0
    assert np.allclose(found[legal], wanted[legal], atol=1e-5)
    assert (found[~legal] == LOWEST).all()


def test_network__files_and_what_is_refused(arrays, tmp_path):
    path = tmp_path / "mine.npz"
    Network(arrays).save(path)
    kept = Network.load(path)
    assert all((kept.weights[name] == arrays[name]).all() for name in WEIGHTS)
    seen = turns(1, 2, [2], np.random.default_rng(1))
    seen["context"] = seen["context"][:, :1]
    with pytest.raises(ParenvsError, match="sees 3 columns of rows and 2 of context, and the env"):
        kept.rate(seen)
    for name, value, words in (
        ("last.weight", np.zeros((2, 4), np.float32), r"'last.weight' must be finite numbers"),
        ("head.0.bias", np.full(4, np.nan, np.float32), r"'head.0.bias' must be finite"),
        ("weight", np.array(1), r"'weight' must be finite numbers of the shape \(\), not int64"),
        ("more", np.zeros(1), "weights must be named weight, context.weight"),
    ):
        np.savez(path, **{**arrays, name: value})
        with pytest.raises(ParenvsError, match=words):
            Network.load(path)
    path.write_bytes(b"PK")
    with pytest.raises(ParenvsError, match="no file of weights"):
        Network.load(path)


@each("env_id", list(PLACES))
def test_shipped__is_of_the_columns_of_its_environment(env_id):
    game = late(environments()[env_id])
    network = shipped(env_id)
    assert (*network.features, *network.contexts) == (len(game.columns), len(game.contexts))
    assert file_of(env_id).stat().st_size < 150_000


@pytest.mark.thorough
@each("env_id", list(PLACES))
def test_learned__plans_fit_and_are_the_same_again(env_id):
    name, options = PLACES[env_id]
    problem = parenvs.problem(name, **options)
    answer = parenvs.plan(problem, LEARNED, seed=3)
    assert answer.report.legal and answer.cost == pytest.approx(answer.report.cost)
    assert parenvs.plan(problem, LEARNED, seed=3).cost == answer.cost


@pytest.mark.slow
def test_served__is_never_below_the_rule_where_plans_can_be_compared():
    class Worst:
        """Rates actions against the rule."""

        def rate(self, seen):
            return np.where(seen["action_mask"] > 0, -1e3 * seen["actions"][..., 0], LOWEST)

    env_id, name, family = "HybridPlan-v2", "hybrid-validation", "gpt"
    shares = network.served(Worst(), env_id, name, family)
    game = late(environments()[env_id])(1, **set_of(name).env_kwargs(family))
    stream, rule = Stream(), []
    for stream.number in range(len(shares)):
        found = decode(None, game, game.source.draw(stream))
        rule.append(game.reference[0] / found.cost)
    assert len(shares) == len(set_of(name).of(family))
    assert (shares >= np.array(rule) - 1e-12).all() and np.isclose(shares, rule).any()


def test_beam__rates_the_best_plan_of_all_highest():
    """A policy that knows what actions are worth finds the optimum; one that knows nothing less."""
    env_id, name = "PipelinePlan-v0", "plan-validation"
    game = late(environments()[env_id])(64, rows="ahead", instance=name, order="sequential")
    told = teach(game)

    class Exact:
        """Rates actions by their worth."""

        def rate(self, seen):
            running = np.flatnonzero(~game.over)
            worth = np.nan_to_num(told()[running][: len(seen["actions"])], nan=-1.0)
            return np.where(seen["action_mask"] > 0, worth, LOWEST)

    class Last:
        """Rates late actions highest."""

        def rate(self, seen):
            return np.where(seen["action_mask"] > 0, np.arange(192.0), LOWEST)

    stream, shares = Stream(), []
    for stream.number in range(3):
        problem = game.source.draw(stream)
        best, other = (beam(policy, game, problem) for policy in (Exact(), Last()))
        assert best.cost == pytest.approx(game.known[0])
        assert game.problem(0).report(best.plan).cost == pytest.approx(best.cost)
        shares.append(other.cost / best.cost)
    assert min(shares) >= 1.0 - 1e-9 and max(shares) > 1.01


def test_load__a_shipped_network_plays_as_it_rates():
    policy, env = parenvs.load("HybridPlan-v2"), gym.make("HybridPlan-v2")
    seen, info = env.reset(seed=1)
    action, _ = policy.predict(seen, action_masks=info["action_mask"].astype(bool))
    batch = {name: values[None] for name, values in seen.items()}
    assert action == policy.rate(batch)[0].argmax()
    assert parenvs.evaluate(policy, env, seed=1).report.legal
    assert parenvs.evaluate_set(policy, "hybrid-validation", first=4).coverage == 1
    other = parenvs.load("PipelinePlan-v0")
    assert parenvs.evaluate_set(other, "plan-validation", first=8).score > 0.8
    many = parenvs.evaluate_set(parenvs.load("PipelineImprove-v0"), "plan-s32-validation", first=2)
    assert many.coverage == 1
    with pytest.raises(ParenvsError, match="no network ships for DataParallel-v0; networks ship"):
        parenvs.load("DataParallel-v0")


def test_load__a_training_run(tmp_path):
    train(TrainConfig(env_id="PipelineCut-v0", steps=64, agent="ppo"), tmp_path / "run")
    policy = parenvs.load(tmp_path / "run")
    assert parenvs.evaluate(policy, gym.make("PipelineCut-v0")).report.legal
    with pytest.raises(ParenvsError, match="nowhere"):
        parenvs.load(tmp_path / "nowhere")
