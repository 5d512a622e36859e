import gymnasium as gym
import numpy as np
import pytest

pytest.importorskip("sb3_contrib")

import torch
from sb3_contrib import MaskablePPO

from parenvs.agents.learning.chain.extractor import (
    PLACES,
    POINT_PLANES,
    UNIT_PLANES,
    WHOLE,
    WIDTH,
    ChainExtractor,
    PlaceHead,
    Planes,
    Trunk,
    WholeHead,
    pooled,
)
from parenvs.agents.learning.chain.policy import ChainPolicy, ChainQPolicy
from parenvs.agents.learning.rainbow.algorithm import Rainbow
from parenvs.agents.learning.train.learners import ppo_settings
from parenvs.agents.learning.vec_env import make_env, one_thread
from parenvs.agents.pipeline.points import exact_points
from parenvs.tasks.pipeline.points import PointSpace

ENVS = 12


@pytest.fixture(scope="module")
def env():
    with one_thread():
        yield make_env("PipelinePlan-v0", {"repeat": 3}, 0, ENVS)


@pytest.fixture(scope="module")
def seen(env):
    """Observations and masks of random episodes, some of them at their ends."""
    rng, found = np.random.default_rng(0), []
    observation = env.reset()
    for _ in range(16):
        masks = np.stack(env.env_method("action_masks"))
        found.append((observation, masks))
        observation, _, dones, infos = env.step(
            np.where(masks, rng.random(masks.shape), -1).argmax(axis=1)
        )
        for row in np.flatnonzero(dones):
            last = {
                key: np.asarray(x)[None] for key, x in infos[row]["terminal_observation"].items()
            }
            found.append((last, infos[row]["action_mask"][None].astype(bool)))
    observations = {key: np.concatenate([x[key] for x, _ in found]) for key in observation}
    return observations, np.concatenate([masks for _, masks in found])


def tensors(observation, rows=slice(None)):
    return {key: torch.from_numpy(np.asarray(x)[rows]) for key, x in observation.items()}


def extracted(extractor, observation):
    seen = tensors(observation)
    seen["step"] = torch.nn.functional.one_hot(seen["step"], 15).float()
    with torch.no_grad():
        return extractor(seen)


def test_planes__finite_and_of_moderate_size(seen):
    observation, masks = seen
    planes = Planes(tensors(observation))
    points, units = planes.points(), planes.units()
    b = len(masks)
    assert points.shape == (b, POINT_PLANES, 128)
    assert units.shape == (b, UNIT_PLANES, 64)
    assert planes.whole.shape == (b, WHOLE)
    for x in (points, units, planes.whole):
        assert x.dtype == torch.float32
        assert torch.isfinite(x).all()
        assert x.abs().max() < 20
    assert (points[:, 0].numpy() == observation["chain"][:, 3]).all()
    assert (units[:, 0].sum(dim=1).numpy() == np.rint(observation["numbers"][:, 2] * 64)).all()


def test_planes__mark_the_plan_so_far(seen):
    observation, _ = seen
    planes = Planes(tensors(observation))
    for marks, row, most in ((planes.points(), 0, 128), (planes.units(), 1, 64)):
        for found, plan in zip(marks[:, 2].numpy(), observation["plan"][:, row], strict=True):
            assert np.flatnonzero(found).tolist() == np.rint(plan[plan >= 0] * most).tolist()


def test_planes__do_not_depend_on_the_scale_of_seconds(seen):
    """Half the computing and half the bytes at the same bandwidths is the same problem."""
    observation, _ = seen
    chain = observation["chain"].copy()
    chain[:, :3] /= 2
    numbers = observation["numbers"].astype(float)
    memory = numbers[:, 4] / (1 - numbers[:, 4]) / 2
    numbers[:, 4] = memory / (1 + memory)
    other = {**observation, "chain": chain, "numbers": numbers.astype(np.float32)}
    mine, theirs = Planes(tensors(observation)), Planes(tensors(other))
    assert torch.allclose(mine.whole, theirs.whole, atol=1e-3)
    assert torch.allclose(mine.points(), theirs.points(), atol=1e-3)
    assert torch.allclose(mine.units(), theirs.units(), atol=1e-3)


def test_extractor__computes_the_places_whose_turn_it_is(env, seen):
    observation, _ = seen
    torch.manual_seed(0)
    features = extracted(ChainExtractor(env.observation_space), observation)
    assert features.shape == (len(observation["step"]), (PLACES + 2) * WIDTH + WHOLE)
    places = features[:, : PLACES * WIDTH].view(-1, PLACES, WIDTH).abs().sum(dim=2)
    odd = torch.from_numpy(observation["step"] % 2 == 1)
    assert (places[odd, :128] == 0).all()
    assert (places[~odd, 128:] == 0).all()
    beyond = torch.from_numpy(observation["chain"][:, 3] == 0)
    assert (places[:, :128][beyond] == 0).all()
    assert (places[~odd, :128].sum(dim=1) > 0).all()
    assert (places[odd, 128:].sum(dim=1) > 0).all()


def test_trunk__moves_along_with_the_chain():
    """Away from the ends, what is shifted is rated as before, in the new place."""
    torch.manual_seed(0)
    trunk, head = Trunk(5, WIDTH), torch.nn.Linear(WIDTH, 1)
    planes, whole = torch.randn(2, 5, 128), torch.randn(2, WHOLE)
    planes[:, 0] = 1.0
    planes[:, 1:, :50] = planes[:, 1:, 78:] = 0.0
    with torch.no_grad():
        before = head(trunk(planes, whole))
        after = head(trunk(planes.roll(7, dims=2), whole))
    assert torch.allclose(after[:, 32:105], before[:, 25:98], atol=1e-5)
    assert not torch.allclose(after[:, 32:105], before[:, 32:105], atol=1e-2)


def test_trunk__a_point_depends_on_its_neighbourhood_and_the_context():
    torch.manual_seed(0)
    trunk = Trunk(5, WIDTH)
    planes, whole = torch.rand(1, 5, 128), torch.randn(1, WHOLE)
    planes[:, 0] = 1.0
    planes.requires_grad_()
    # Without the pooled places, the reach is that of the convolutions.
    torch.nn.init.zeros_(trunk.common.weight)
    trunk(planes, whole)[0, 64].sum().backward()
    touched = planes.grad[0, 1:].abs().sum(dim=0).nonzero()[:, 0]
    assert touched.min() >= 64 - 22
    assert touched.max() <= 64 + 22
    assert 64 in touched
    with torch.no_grad():
        assert not torch.allclose(trunk(planes, whole), trunk(planes, whole + 1))


def test_trunk__knows_nothing_beyond_the_end():
    torch.manual_seed(0)
    trunk, whole = Trunk(5, WIDTH), torch.randn(1, WHOLE)
    short = torch.rand(1, 5, 40)
    short[:, 0] = 1.0
    padded = torch.nn.functional.pad(short, (0, 88))
    with torch.no_grad():
        one, other = trunk(short, whole), trunk(padded, whole)
    assert torch.allclose(one, other[:, :40], atol=1e-5)
    assert (other[:, 40:] == 0).all()
    here, there = (x[:, 0, :, None] for x in (short, padded))
    assert torch.allclose(pooled(one, here), pooled(other, there), atol=1e-5)


def test_heads__rate_an_action_by_its_own_channels():
    torch.manual_seed(0)
    features = torch.randn(3, (PLACES + 2) * WIDTH + WHOLE)
    places, whole = PlaceHead(WIDTH, 2), WholeHead(WIDTH, 2)
    changed = features.clone()
    changed[:, 5 * WIDTH : 6 * WIDTH] += 1.0
    with torch.no_grad():
        differ = (places(features) != places(changed)).view(3, PLACES, 2)
        assert torch.equal(whole(features), whole(changed))
        assert whole(features).shape == (3, 2)
    assert differ[:, 5].all()
    assert differ.sum() == 6
    with torch.no_grad():  # points, and units, share one layer
        alike = features.clone()
        alike[:, : PLACES * WIDTH] = features[:, :WIDTH].repeat(1, PLACES)
        rated = places(alike).view(3, PLACES, 2)
    assert torch.allclose(rated[:, :128], rated[:, :1].expand(-1, 128, -1))
    assert torch.allclose(rated[:, 128:], rated[:, 128:129].expand(-1, 64, -1))


@pytest.mark.thorough
def test_chain_policy__masks_and_starts_all_alike(env, seen):
    observation, masks = seen
    model = MaskablePPO(ChainPolicy, env, n_steps=4, batch_size=16, n_epochs=1, seed=0)
    for deterministic in (True, False):
        actions, _ = model.predict(observation, action_masks=masks, deterministic=deterministic)
        assert masks[np.arange(len(masks)), actions].all()
    obs, _ = model.policy.obs_to_tensor(observation)
    with torch.no_grad():
        found = model.policy.get_distribution(obs, masks).distribution.probs.numpy()
        values = model.policy.predict_values(obs)
    assert (found[~masks] == 0).all()
    assert np.allclose(found[masks] * masks.sum(axis=1).repeat(masks.sum(axis=1)), 1, atol=0.2)
    assert values.shape == (len(masks), 1)
    model.learn(4 * ENVS)


def test_chain_policy__saved_and_loaded(env, seen, tmp_path):
    observation, masks = seen
    model = MaskablePPO(
        ChainPolicy, env, n_steps=4, policy_kwargs={"features_extractor_kwargs": {"width": 8}}
    )
    model.save(tmp_path / "model.zip")
    again = MaskablePPO.load(tmp_path / "model.zip")
    assert again.policy.features_extractor.width == 8
    obs, _ = model.policy.obs_to_tensor(observation)
    with torch.no_grad():
        one, other = (
            x.policy.get_distribution(obs, masks).distribution.logits for x in (model, again)
        )
    assert torch.equal(one, other)


SWITCHES = {
    "dueling": {},
    "plain": {"dueling": False, "double_q": False, "prioritized": False, "n_steps": 1},
    "c51": {"distributional": True, "n_atoms": 11, "v_min": 0.0, "v_max": 1.0},
    "c51, no dueling": {"distributional": True, "n_atoms": 11, "dueling": False},
    "noisy": {"noisy": True},
}


@pytest.mark.thorough
@pytest.mark.parametrize("switches", SWITCHES.values(), ids=SWITCHES)
def test_chain_q_policy__every_switch(env, seen, switches):
    observation, masks = seen
    model = Rainbow(
        ChainQPolicy, env, buffer_size=48, batch_size=8, learning_starts=24, seed=0, **switches
    )
    model.learn(36)
    assert model._n_updates > 0
    actions, _ = model.predict(observation, action_masks=masks, deterministic=True)
    assert masks[np.arange(len(masks)), actions].all()
    obs, _ = model.policy.obs_to_tensor(observation)
    with torch.no_grad():
        outputs = model.q_net.outputs(obs)
        q = model.q_net(obs)
    atoms = 11 if switches.get("distributional") else 1
    assert outputs.shape == (len(masks), PLACES, atoms)
    assert torch.isfinite(q).all()  # of the ends of episodes too
    if switches.get("noisy"):
        model.q_net.draw(np.random.default_rng(1))
        with torch.no_grad():
            assert not torch.equal(model.q_net(obs), q)


def test_chain_policy__on_a_single_environment():
    env = gym.make("PipelinePlan-v0", instance="vgg-19", stages=2)
    model = MaskablePPO(ChainPolicy, env, n_steps=8, batch_size=8, n_epochs=1, seed=0)
    model.learn(8)
    observation, info = env.reset()
    mask = info["action_mask"].astype(bool)
    action, _ = model.predict(observation, action_masks=mask, deterministic=True)
    assert mask[action]


def lengths(env, model, episodes):
    """(episodes, number of environments) seconds of the plans that an agent draws."""
    found = [[] for _ in range(env.num_envs)]
    observation = env.reset()
    while min(map(len, found)) < episodes:
        masks = np.stack(env.env_method("action_masks"))
        actions, _ = model.predict(observation, action_masks=masks)
        observation, _, dones, infos = env.step(actions)
        for row in np.flatnonzero(dones):
            found[row].append(infos[row]["length_seconds"])
    return np.array([one[:episodes] for one in found]).T


@pytest.mark.slow
def test_ppo__improves_on_sixteen_problems():
    """The plans that it draws get shorter; at first all legal ones are alike."""
    with one_thread():
        env = make_env("PipelinePlan-v0", {"family": "uniform", "repeat": 10_000}, 0, 16)
        env.reset()
        problems = env.get_attr("problem")
        optima = np.array([exact_points(PointSpace.build(one)).cost for one in problems])
        settings = ppo_settings("PipelinePlan-v0", 8)
        settings.update(n_steps=16, batch_size=128, ent_coef=0.0)
        model = MaskablePPO(ChainPolicy, env, seed=0, **settings)
        before = lengths(env, model, 5) / optima
        model.learn(4096)
        after = lengths(env, model, 5) / optima
    assert before.min() > 1 - 1e-6
    assert after.min() > 1 - 1e-6
    assert np.log(after).mean() < 0.8 * np.log(before).mean()
