"""One policy over rows, its algorithms, and the trainer that resumes to the bit."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import sb3_contrib
import torch
from cases import each, slow
from gymnasium import spaces

from parenvs import judge, load_plan, load_profile
from parenvs.agents.evaluation.evaluate_set import SetEvaluation, evaluate_set
from parenvs.agents.learning.algorithm import (
    Batch,
    Chance,
    Place,
    algorithm,
    names,
    register_agent,
    settings_of,
)
from parenvs.agents.learning.config import OVERRIDES, TrainConfig
from parenvs.agents.learning.net import Lens, RowsNet, Seen, entropy, log_policy
from parenvs.agents.learning.network import decode
from parenvs.agents.learning.play import Envs, Play, Player, Share
from parenvs.agents.learning.ppo import PPO, PPOSettings
from parenvs.agents.learning.rainbow import Rainbow, RainbowSettings
from parenvs.agents.learning.sb3 import MaskablePPO, RowsPolicy
from parenvs.agents.learning.trainer import STATE, load, train
from parenvs.cluster import PRESETS
from parenvs.core.registry import TASKS
from parenvs.core.sets import set_of
from parenvs.errors import ParenvsError
from parenvs.tasks.elastic.game import ElasticChoice
from parenvs.tasks.hybrid.improve import HybridImprovement, named

ENV = "ElasticPlan-v2"
SMALL = {"family": "gone"}
FEW = {"envs": 8, "turns": 8, "turns_a_step": 32}
GAME = ElasticChoice(1, **SMALL)
WHOLE = Lens(GAME.observation_space, GAME.action_space)
LENS = Lens(
    spaces.Dict({
        "actions": spaces.Box(0, 1, (8, WHOLE.features)),
        "context": spaces.Box(0, 1, (WHOLE.contexts,)),
        "action_mask": spaces.MultiBinary(8),
    }),
    spaces.Discrete(8),
)  # fmt: skip


def seen(count, legal, rng=None, actions=8):
    """Drawn rows of ``count`` turns, the first ``legal`` actions legal."""
    rng = rng or np.random.default_rng(0)
    mask = np.arange(actions) < legal
    rows = rng.random((count, actions, LENS.features), dtype=np.float32) * mask[:, None]
    context = rng.random((count, LENS.contexts), dtype=np.float32)
    return Seen(torch.tensor(rows), torch.tensor(context), torch.tensor(np.tile(mask, (count, 1))))


def moved(net):
    """Change every weight, so that nothing is 0."""
    torch.manual_seed(1)
    with torch.no_grad():
        for each_ in net.parameters():
            each_.add_(0.3 * torch.randn_like(each_))
    return net


def test_net__of_legal_rows_alone_is_that_of_all_rows(monkeypatch):
    """Outputs, values and gradients, of turns of which one has no legal row; and of no turn."""
    batch = seen(6, 8)
    mask = torch.from_numpy(np.random.default_rng(1).random((6, 8)) < 0.6)
    mask[2] = False
    batch = Seen(batch.rows * mask[..., None], batch.context, mask)
    net = moved(RowsNet(LENS, outputs=3))

    def found():
        outputs, values = net(batch)
        loss = (outputs.square() * mask[..., None]).sum() + values.square().sum()
        return outputs[mask], values, *torch.autograd.grad(loss, list(net.parameters()))

    packed, (outputs, values) = found(), net(batch.at(slice(0, 0)))
    assert outputs.shape == (0, 8, 3) and values.shape == (0, 1)
    assert not net(batch)[0][~mask].any()
    monkeypatch.setattr(RowsNet, "_is_packed", lambda *_: False)
    for one, other in zip(packed, found(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_net__untrained_is_the_rule_and_illegal_actions_have_no_chance():
    net = RowsNet(LENS)
    batch = seen(20, 5)
    logs, values = log_policy(net, batch)
    best = torch.where(batch.mask, batch.rows[..., 0], -torch.inf).argmax(dim=1)
    assert torch.equal(logs.argmax(dim=1), best)
    assert (logs.exp()[:, 5:] == 0).all() and (values == 0).all()
    assert torch.isfinite(entropy(logs)).all()


def test_net__rows_of_padding_change_nothing():
    net = moved(RowsNet(LENS))
    batch = seen(6, 5)
    short = Seen(batch.rows[:, :5], batch.context, batch.mask[:, :5])
    for one, other in zip(log_policy(net, batch), log_policy(net, short), strict=True):
        one = one[:, :5] if one.dim() == 2 else one
        assert torch.allclose(one, other, atol=1e-5)


def test_lens__other_environments_are_one_hot_rows_and_context():
    space = spaces.Dict(
        {"place": spaces.Discrete(3), "size": spaces.Box(0, 1, (2, 2)),
         "action_mask": spaces.Box(0, 1, (4,), np.int8)}
    )  # fmt: skip
    lens = Lens(space, spaces.Discrete(4, start=1))
    assert (lens.features, lens.contexts, lens.first, lens.scored) == (0, 7, 1, False)
    mask = np.array([[1, 0, 1, 1], [0, 1, 0, 1]])
    observation = {"place": np.array([2, 0]), "size": np.ones((2, 2, 2)), "action_mask": mask}
    rows, context, legal = lens(observation, {})
    assert rows.shape == (2, 4, 0) and legal.tolist() == mask.astype(bool).tolist()
    assert context[0].tolist() == [0, 0, 1, 1, 1, 1, 1]
    plain = Lens(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
    masked = plain(np.zeros((1, 3)), {"action_mask": np.array([[0, 1]])})
    assert masked.mask.tolist() == [[False, True]]
    assert plain(np.zeros((1, 3)), {}).mask.all()
    with pytest.raises(ParenvsError, match="actions must be Discrete"):
        Lens(spaces.Box(-1, 1, (3,)), spaces.Box(-1, 1, (3,)))


def test_settings__whole_numbers_are_numbers_and_agents_are_known():
    assert settings_of(PPO, rate=1).rate == 1
    assert {"ppo", "group"} <= set(names()) and algorithm("ppo") is PPO


def batch_of(rewards, ended, values, episodes=None):
    """A batch of ``(T, n)`` figures."""
    rewards, ended = torch.tensor(rewards), torch.tensor(ended)
    turns, count = rewards.shape
    one = seen(count, 8)
    stacked = Seen(*(x.expand(turns, *x.shape) for x in one))
    actions = torch.zeros(turns, count, dtype=torch.int64)
    kept = {"logs": torch.zeros(turns, count), "values": torch.tensor(values)}
    numbers = torch.zeros_like(actions) if episodes is None else torch.tensor(episodes)
    return Batch(stacked, actions, kept, rewards, ended, numbers, one, Place(0, count, 0))


def test_ppo__advantages_by_hand():
    agent = PPO(LENS, replace(PPOSettings(), discount=0.5, trace=0.5))
    batch = batch_of([[1.0], [2.0], [4.0]], [[False], [True], [False]], [[1.0], [1.0], [2.0]])
    # The network's values are 0: behind the last turn nothing is expected.
    found = agent.advantages(batch, batch.kept["values"])
    assert found[:, 0].tolist() == [1 + 0.5 * 1 - 1 + 0.25 * (2 - 1), 2 - 1, 4 - 2]


class Corridor(gym.Env):
    """Go right: 1 at the end of three places; cut off after four turns."""

    observation_space, action_space = spaces.Discrete(4), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.place = self.turn = 0
        return 0, {}

    def step(self, action):
        self.place, self.turn = max(self.place + 2 * int(action) - 1, 0), self.turn + 1
        over = self.place == 3
        return self.place, float(over), over, self.turn == 4 and not over, {}


@pytest.fixture
def corridor():
    gym.register("Corridor-v0", entry_point=Corridor)
    yield "Corridor-v0"
    del gym.registry["Corridor-v0"]


def test_play__what_is_cut_off_is_worth_what_is_left(corridor):
    agent = PPO(Lens(Corridor.observation_space, Corridor.action_space), PPOSettings(discount=0.5))
    agent.values = lambda seen: seen.context.argmax(dim=1) * 10.0
    agent.act = lambda seen, chance: (torch.tensor([0, 1]), {"logs": torch.zeros(2)})
    play = Play(Envs(TrainConfig(env_id=corridor), Share(0, 2, 2)))
    play.restart(0)
    batch = play.collect(agent, 4)
    assert batch.rewards.tolist() == [[0, 0], [0, 0], [0, 1], [0, 0]]
    assert batch.ended.tolist() == [[False, False]] * 2 + [[False, True], [True, False]]
    agent.values = lambda seen: torch.full((len(seen.mask),), 10.0)
    play.restart(0)
    assert play.collect(agent, 4).rewards[3].tolist() == [5.0, 0.0]
    assert play.returns == [1.0, 0.0]


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["group", *slow("ppo", "rainbow", "maskable-ppo")])
def test_train__any_environment_is_learned(corridor, name, monkeypatch):
    more = {
        "group": {"copies": 4},
        "rainbow": {"first": 256, "sync": 20, "minibatch": 32, "reuse": 4.0},
    }
    settings = {"envs": 8, "turns": 16, "rate": 1e-2, **more.get(name, {})}
    config = TrainConfig(env_id=corridor, agent=name, steps=4096, settings=settings)
    lines, now = [], iter(range(10**6))
    monkeypatch.setattr("parenvs.agents.learning.trainer.time.monotonic", lambda: next(now))
    trained = train(config, say=lines.append)
    assert trained.curve[-1][1] > 0.85  # chance is below 0.2
    assert lines[0].startswith(f"{corridor}: {name}, 8 at once, ")
    assert lines[1].startswith("16 of 4,096 steps") and "of 4,096 steps; mean" in lines[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["rainbow", *slow("rainbow-paper", "maskable-ppo", "ppo", "group", "imitate")]
)
def test_train__resumes_to_the_last_bit(name, tmp_path, monkeypatch):
    monkeypatch.setattr("parenvs.agents.learning.trainer.PART", 32)
    folder = tmp_path
    rainbow = {"envs": 8, "turns": 8, "memory": 256, "first": 64, "minibatch": 16, "sync": 3}
    settings = dict(rainbow if name.startswith("rainbow") else FEW)
    if name == "group":
        settings["copies"] = 4
    config = TrainConfig(
        env_id=ENV, env_kwargs=SMALL, agent=name, steps=512, seed=3, settings=settings
    )
    whole = train(config, folder / "whole")
    kind, learn, count = type(whole.algorithm), type(whole.algorithm).learn, []

    def interrupted(self, *arguments):
        count.append(1)
        if len(count) == 6:  # in the middle of a part
            raise KeyboardInterrupt
        return learn(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "learn", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(config, folder / "part")
    assert not (folder / "part" / "model.pt").exists()
    with pytest.raises(ParenvsError, match=r"holds a run already; .*--resume"):
        train(config, folder / "part")
    with pytest.raises(ParenvsError, match="of another configuration: seed"):
        train(replace(config, seed=4), folder / "part", resume=True)
    again = train(config, folder / "part", resume=True)
    states = (run.algorithm.net.state_dict().values() for run in (whole, again))
    assert all(torch.equal(*pair) for pair in zip(*states, strict=True))
    assert str(again.curve) == str(whole.curve)  # nan before an episode has ended
    loaded = load(folder / "part")
    assert torch.equal(loaded.net.row[1].weight, again.algorithm.net.row[1].weight)
    (folder / "part" / "model.pt").write_bytes(b"PK")
    with pytest.raises(ParenvsError, match=r"model\.pt: damaged"):
        load(folder / "part")
    (folder / "part" / STATE).write_bytes(b"PK")
    with pytest.raises(ParenvsError, match=r"state\.pt: damaged"):
        train(config, folder / "part", resume=True)


class Mine(PPO):
    name = "mine"


def test_train__an_algorithm_of_ones_own(corridor, monkeypatch):
    monkeypatch.setattr("parenvs.agents.learning.algorithm._registered", {})
    register_agent(Mine)
    config = TrainConfig(env_id=corridor, agent="mine", steps=64)
    assert type(train(config).algorithm) is Mine and "mine" in names()
    register_agent(Mine)
    with pytest.raises(ParenvsError, match="agent 'mine' is there already"):
        register_agent(type("Other", (PPO,), {"name": "mine"}))
    for name in ("ppo", None):
        with pytest.raises(ParenvsError, match="is there already; choose another"):
            register_agent(type("Other", (PPO,), {"name": name}))
    with pytest.raises(ParenvsError, match="an agent is a class derived from Algorithm"):
        register_agent(int)


def test_settings__of_an_environment_stand_between_default_and_given(corridor, monkeypatch):
    monkeypatch.setitem(OVERRIDES, (corridor, "ppo"), {"turns": 3, "trace": 0.5})
    found = TrainConfig(env_id=corridor, agent="ppo", settings={"trace": 0.7}).agent_settings()
    assert (found.turns, found.trace, found.envs) == (3, 0.7, PPOSettings().envs)
    for env_id, name in set(OVERRIDES) - {(corridor, "ppo")}:  # each is one that there is
        assert env_id in ALL
        TrainConfig(env_id=env_id, agent=name).agent_settings()


# MaskablePPO of sb3-contrib.


@pytest.fixture
def sb3():
    return MaskablePPO(LENS, PPOSettings(envs=4, turns=6, turns_a_step=8))


def test_sb3__advantages_and_returns_are_those_of_our_ppo(sb3):
    """The same batch, the same values: what its buffer computes is what we do."""
    ours = PPO(LENS, sb3.settings)
    moved(sb3.net)
    ours.net.load_state_dict(sb3.net.state_dict())
    rng = np.random.default_rng(3)
    batch = batch_of(
        rng.random((6, 4), dtype=np.float32), rng.random((6, 4)) < 0.3,
        rng.random((6, 4), dtype=np.float32),
    )  # fmt: skip
    sb3.model.train = lambda: None
    sb3.learn(batch, 0.0)
    found = sb3.model.rollout_buffer
    expected = ours.advantages(batch, batch.kept["values"])
    assert np.allclose(found.advantages, expected, atol=1e-5)
    assert np.allclose(found.returns, expected + batch.kept["values"], atol=1e-5)
    assert np.array_equal(found.episode_starts[1:], batch.ended[:-1].float())


@pytest.mark.thorough
def test_rows_policy__in_sb3_itself(tmp_path):
    """Untrained it is the rule; it learns, and its file comes back."""
    from parenvs.agents.learning.sb3 import make_env

    env = make_env(ENV, SMALL, seed=0, envs=4)
    options = {"n_steps": 8, "batch_size": 16, "gamma": 1.0, "device": "cpu", "seed": 0}
    model = sb3_contrib.MaskablePPO(RowsPolicy, env, **options, policy_kwargs={"width": 16})
    observation = env.reset()
    rule = np.where(observation["action_mask"], observation["actions"][..., 0], -np.inf)
    masks = np.stack(env.env_method("action_masks"))
    actions, _ = model.predict(observation, action_masks=masks, deterministic=True)
    assert actions.tolist() == rule.argmax(axis=1).tolist()
    before = [each_.clone() for each_ in model.policy.parameters()]
    model.learn(64)
    after = list(model.policy.parameters())
    assert any(not torch.equal(*pair) for pair in zip(before, after, strict=True))
    model.save(tmp_path / "model.zip")
    again = sb3_contrib.MaskablePPO.load(tmp_path / "model.zip")
    assert all(torch.equal(*pair) for pair in zip(after, again.policy.parameters(), strict=True))
    with pytest.raises(ParenvsError, match="take MultiInputPolicy"):
        sb3_contrib.MaskablePPO(RowsPolicy, gym.make("PipelineCut-v0", instance="vgg-19"))


# Runs on one problem.

CUT = {"env_id": "PipelineCut-v0", "env_kwargs": {"instance": "vgg-19", "cluster": "B"}}


@pytest.mark.thorough
def test_train__result_is_the_judges(tmp_path):
    """The best episode's actions give the plan, and the plan the value; files are whole."""
    config = TrainConfig(**CUT, agent="ppo", steps=512, settings=FEW)
    found = train(config, tmp_path).result
    plan = load_plan(tmp_path / "plan.json")
    report = judge(plan, load_profile("vgg-19", PRESETS["B"]))
    assert report.legal and found.value == pytest.approx(report.value, rel=1e-9)
    assert (found.steps, found.episodes) == (512, 256) and 0 < found.best_steps <= 512
    made = {path.name for path in tmp_path.iterdir()}
    assert made == {"config.json", "state.pt", "model.pt", "curve.csv", "log", "plan.json",
                    "result.json"}  # fmt: skip
    assert list((tmp_path / "log").glob("events.out.tfevents*"))


@pytest.mark.thorough
def test_train__stops_at_the_target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    config = TrainConfig(**CUT, agent="ppo", steps=10_000, settings=FEW)
    found = train(config, target=0.5, stop_at_target=True).result
    assert found.target_steps <= found.steps < 10_000 and found.value >= 0.5
    never = train(replace(config, steps=128), target=1.0, stop_at_target=True).result
    assert never.target_steps is None and never.steps == 128
    assert torch.get_num_threads() == threads and not list(tmp_path.iterdir())


ALL = [name for task in TASKS.values() for name in task.envs]


class Taught(Corridor):
    """Says what actions are worth: all of them, or the better one's alone."""

    whole = True

    def told(self):
        return {"action_values": np.array([0.0 if self.whole else np.nan, 1.0])}

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], self.told()

    def step(self, action):
        return *super().step(action)[:4], self.told()


@pytest.mark.thorough
@each("whole", [True, False])
def test_imitate__learns_what_is_told(whole):
    gym.register("Taught-v0", entry_point=Taught)
    try:
        Taught.whole = whole
        settings = {"envs": 4, "turns": 8, "turns_a_step": 32, "rate": 3e-3}
        config = TrainConfig(env_id="Taught-v0", agent="imitate", steps=1024, settings=settings)
        agent = train(config).algorithm
    finally:
        del gym.registry["Taught-v0"]
    place = Seen(torch.zeros(4, 2, 0), torch.eye(4), torch.ones(4, 2, dtype=torch.bool))
    assert (agent.logs(place).exp()[:3, 1] > 0.9).all()


def test_rainbow__qualities_stay_when_the_spread_changes():
    agent = Rainbow(LENS, RainbowSettings(quantiles=4))
    moved(agent.net)
    batch = seen(5, 6)
    agent.measure(torch.tensor([49.0, 1.0]))  # the first batch sets the spread
    moved(agent.net)
    before = agent.values(batch)
    agent.measure(torch.tensor([1.0, 1.0]))
    assert agent.spread == pytest.approx(5.0)
    assert torch.allclose(agent.values(batch), before, rtol=1e-4)


@pytest.mark.thorough
def test_decode__is_never_worse_than_its_rule():
    single, several = HybridImprovement(1), HybridImprovement(9)
    agent = Player(PPO(Lens(single.observation_space, single.action_space), PPOSettings()))
    moved(agent.agent.net)
    for name in set_of("hybrid-test").of("gpt")[:2]:
        start = named(name)
        rule = decode(None, single, start)
        found = decode(agent, several, start, samples=8, seed=1)
        assert found.costs[-1] == rule.cost >= found.cost == found.costs.min()
        assert start.problem.report(found.plan).cost == pytest.approx(found.cost)
        assert (decode(agent, several, start, samples=8, seed=1).costs == found.costs).all()


def by_column_0(observation, mask):
    return np.where(mask, observation["actions"][:, 0], -np.inf).argmax()


@pytest.mark.thorough
def test_player__plays_a_set_as_its_rule_does_before_it_has_learned(tmp_path):
    agent = PPO(WHOLE, PPOSettings())
    played = evaluate_set(Player(agent, ENV), "elastic-test", "bulk-gpt-1.5b", first=4)
    rule = evaluate_set(by_column_0, "elastic-test", "bulk-gpt-1.5b", first=4)
    assert played.scores.tolist() == rule.scores.tolist()
    moved(agent.net)
    player, batch = Player(agent, ENV), seen(5, 6, actions=GAME.action_space.n)
    shown = {"actions": batch.rows.numpy(), "context": batch.context.numpy(),
             "action_mask": batch.mask.numpy().astype(np.int8)}  # fmt: skip
    chosen = player.predict(shown, batch.mask.numpy())[0]
    for row, mask in enumerate(batch.mask.numpy()):
        one = {name: value[row] for name, value in shown.items()}
        assert player.predict(one, mask)[0] == chosen[row]
    player.set_random_seed(3)
    first = player.predict(shown, batch.mask.numpy(), deterministic=False)[0]
    player.set_random_seed(3)
    assert (player.predict(shown, batch.mask.numpy(), deterministic=False)[0] == first).all()
    with pytest.raises(ParenvsError, match="actions, and the agent was trained with 8"):
        narrow = Lens(spaces.Box(0, 1, (2,)), spaces.Discrete(8))
        evaluate_set(Player(PPO(narrow, PPOSettings()), ENV), "elastic-test", first=1)
    with pytest.raises(ParenvsError, match="hybrid-test is a set of HybridPlan-v2, not of 'Ela"):
        evaluate_set(player, "hybrid-test")
    saved = tmp_path / "scores.json"
    played.save(saved)
    assert np.array_equal(SetEvaluation.load(saved).scores, played.scores, equal_nan=True)


def test_player__returns_of_any_environment(corridor):
    agent = PPO(Lens(Corridor.observation_space, Corridor.action_space), PPOSettings())
    agent.best = lambda seen: torch.tensor([1, 0, 1])
    assert Player(agent).returns(corridor, {}, 3).tolist() == [1.0, 0.0, 1.0]


def test_rainbow_paper__epsilon_falls_as_in_section_5_1():
    lens = Lens(spaces.Box(0, 1, (3,)), spaces.Discrete(2))
    for env_id, within in (("OperatorPartition-v0", 2_000), ("PipelineCut-v0", 10_000)):
        settings = TrainConfig(env_id=env_id, agent="rainbow-paper").agent_settings()
        agent = algorithm("rainbow-paper")(lens, settings)
        for turn, share in ((0, 1.0), (within // 2, 0.55), (within, 0.1), (3 * within, 0.1)):
            shares = agent.random_shares(Chance(0, Place(0, 1, turn), 1))
            assert shares.tolist() == pytest.approx([share])
