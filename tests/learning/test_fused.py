import json
import subprocess
import sys
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

pytest.importorskip("sb3_contrib")

import torch
from cases import each, slow
from commands import caller
from torch.utils._python_dispatch import TorchDispatchMode

from parenvs.agents.evaluation.evaluate_set import evaluate_set
from parenvs.agents.learning.fused import run as fused
from parenvs.agents.learning.fused.__main__ import main
from parenvs.agents.learning.fused.checkpoint import CHECKPOINT
from parenvs.agents.learning.fused.env import ACTIONS, FusedEnv
from parenvs.agents.learning.fused.memory import Memory, choices_at, state_of
from parenvs.agents.learning.fused.policy import Choices, FusedPolicy, draw, greedy_lengths
from parenvs.agents.learning.fused.pool import ProblemPool, concatenated, draw_part, draw_parts
from parenvs.agents.learning.fused.ppo import PPO, PPOSettings, advantages
from parenvs.agents.learning.fused.rainbow import KINDS, Rainbow, RainbowSettings, quality
from parenvs.agents.learning.fused.settings import OBJECTIVES
from parenvs.agents.learning.pretrained.network import LOWEST
from parenvs.agents.learning.pretrained.policy import Episodes, PlanPolicy
from parenvs.agents.learning.vec_env import one_thread
from parenvs.core.sets import set_of
from parenvs.datasets.pipeline import generators
from parenvs.errors import ParenvsError
from parenvs.tasks.pipeline.points import PointSpace

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
RANGES = {"inside": generators.INSIDE, "outside": generators.OUTSIDE}
QUICK = PPOSettings(envs=48, iterations=3, choices=3, epochs=2, problems=32, part=16, refill=1)

QUICK_RAINBOW = RainbowSettings(
    envs=32, iterations=3, choices=3, updates=4, batch=16, steps=4, kept=3, copy=3, problems=32,
    part=16, refill=1,
)  # fmt: skip


@pytest.fixture(scope="module", params=DEVICES)
def device(request):
    return torch.device(request.param)


@pytest.fixture(scope="module")
def episodes():
    return draw_part(3, 0, 40)


@pytest.fixture(autouse=True)
def threads():
    with one_thread():
        yield


def random_choice(mask, rng):
    return np.where(mask, rng.random(mask.shape), -1).argmax(axis=1)


def host(values):
    return {k: v.cpu().numpy() for k, v in values.items()}


def keep_problems(env, monkeypatch):
    """Episode i is always of problem i."""
    monkeypatch.setattr(env, "draw", lambda: torch.arange(env.count, device=env.device))
    env.reset()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("ranges", "check"),
    [("inside", False), ("outside", True), *slow(("inside", True), ("outside", False))],
)
def test_env__the_same_as_the_native_batch(device, ranges, check, monkeypatch):
    """Step by step: what is seen, masks, rewards and ends; with ``any``, also illegal actions."""
    n, rng = 16, np.random.default_rng(1)
    batch = gym.make_vec(
        "PipelinePlan-v0", num_envs=n, vectorization_mode="vector_entry_point", ranges=ranges,
        autoreset_mode=AutoresetMode.SAME_STEP, repeat=10**6,
    )  # fmt: skip
    seen, infos = batch.reset(seed=5)
    stages = np.rint(seen["numbers"][:, 0] * 8).astype(int).tolist()
    problems = zip(batch.get_attr("problem"), stages, strict=True)
    spaces = [PointSpace.build(problem.with_stages(s)) for problem, s in problems]
    env = FusedEnv(ProblemPool(Episodes.of(spaces), device), n)
    keep_problems(env, monkeypatch)
    ended = 0
    for _ in range(100):
        found = host(env.observation())
        assert found.keys() == seen.keys()
        for key, value in seen.items():
            assert found[key].dtype == value.dtype
            assert np.array_equal(found[key], value), key
        masks = env.masks().cpu().numpy()
        assert np.array_equal(masks, infos["action_mask"].astype(bool))
        actions = random_choice(masks, rng)
        if check:
            wrong = rng.random(n) < 0.03
            actions[wrong] = rng.integers(-3, ACTIONS + 3, wrong.sum())
        seen, rewards, over, _, infos = batch.step(actions)
        reward, end = env.step(torch.tensor(actions, device=device), check=check)
        assert np.array_equal(end.cpu().numpy(), over)
        np.testing.assert_allclose(reward.cpu().numpy(), rewards, rtol=1e-12)
        assert check or (rewards >= 0).all()
        ended += over.sum()
    assert ended > 150
    assert (env.turn is None) == check


@pytest.mark.thorough
def test_env__draws_problems_of_the_pool(episodes, device):
    env, again = (FusedEnv(ProblemPool(episodes, device), 4000, seed) for seed in (1, 1))
    assert torch.equal(env.problem, again.problem)
    assert not torch.equal(env.problem, FusedEnv(env.pool, 4000, 2).problem)
    first, seen = env.problem, env.problem.new_zeros(len(episodes.batch))
    rng = np.random.default_rng(0)
    for _ in range(10):
        actions = torch.tensor(random_choice(env.masks().cpu().numpy(), rng), device=device)
        before = env.problem
        _, ended = env.step(actions)
        assert torch.equal(env.problem[~ended], before[~ended])
        assert torch.equal(env.choices_made == 0, ended)
        seen += env.problem[ended].bincount(minlength=len(seen))
    assert not torch.equal(env.problem, first)
    expected = seen.sum() / len(seen)
    assert (abs(seen - expected) < 6 * expected.sqrt()).all()


@pytest.mark.thorough
def test_choices__rows_as_the_policy_without_torch_sees_them(episodes, device, monkeypatch):
    env = FusedEnv(ProblemPool(episodes, device), len(episodes.batch))
    keep_problems(env, monkeypatch)
    network = FusedPolicy(device, seed=4)
    policy, rng = PlanPolicy(network.weights()), np.random.default_rng(2)
    turns = []

    def choose(turn):
        turns.append(turn)
        choices = Choices.of(env)
        assert choices.kind == turn.kind
        counts = choices.count.cpu().numpy()
        active = np.isin(np.arange(env.count), turn.episodes)
        assert np.array_equal(counts[active], turn.masks.sum(axis=1))
        rows = choices.rows.cpu().numpy()[active.repeat(counts)]
        np.testing.assert_allclose(rows, turn.rows, rtol=2e-3, atol=2e-4)
        np.testing.assert_allclose(
            choices.context.cpu().numpy()[active], turn.context, rtol=1e-4, atol=1e-5
        )
        logits = network.logits(choices).detach().cpu().numpy()[active]
        ratings = policy.ratings(turn)
        expected = torch.tensor(ratings).log_softmax(dim=1).numpy()[turn.masks]
        np.testing.assert_allclose(logits[logits > LOWEST / 2], expected, atol=2e-3)
        columns = random_choice(turn.masks, rng)
        rank = np.zeros(env.count, dtype=int)
        rank[active] = (turn.masks & (np.arange(turn.masks.shape[1]) < columns[:, None])).sum(1)
        actions = choices.action(torch.tensor(rank, device=device))
        first = 0 if turn.kind == "points" else 128
        assert np.array_equal(actions.cpu().numpy()[active], columns + first)
        env.step(actions)
        return columns

    episodes.play(choose)
    assert len(turns) == 2 * (episodes.batch.stages.max() - 1)


def test_draw__by_the_probabilities_and_only_what_is_legal(device):
    chances = torch.tensor([0.5, 0.3, 0.2], device=device)
    logits = torch.full((30_000, 5), LOWEST, device=device)
    logits[:, :3] = chances.log()
    ranks = draw(logits, torch.Generator(device).manual_seed(0))
    share = ranks.bincount(minlength=5) / len(ranks)
    torch.testing.assert_close(share[:3], chances, atol=0.015, rtol=0.0)
    assert not share[3:].any()


def test_draw__no_waiting_at_all_makes_nothing_legal(device, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "exponential_", lambda self, generator: self.zero_())
    logits = torch.tensor([[LOWEST, -1.0, LOWEST]], device=device)
    assert draw(logits, torch.Generator(device)).tolist() == [1]


@each("trace", [1.0, 0.7, 0.0])
def test_advantages__sums_of_errors_until_the_end(trace):
    torch.manual_seed(0)
    rewards, ends, values = torch.rand(9, 6), torch.rand(9, 6) < 0.3, torch.rand(10, 6)
    found = advantages(rewards, ends, values, trace)
    for i in range(6):
        for t in range(9):
            expected, weight = 0.0, 1.0
            for k in range(t, 9):
                after = 0.0 if ends[k, i] else values[k + 1, i]
                expected += weight * (rewards[k, i] + after - values[k, i])
                weight *= trace
                if ends[k, i]:
                    break
            assert found[t, i] == pytest.approx(float(expected), abs=1e-5)


def test_ppo__starts_from_the_policy_that_played(episodes, device):
    ppo = PPO(QUICK, FusedEnv(ProblemPool(episodes, device), QUICK.envs))
    rollout = ppo.play()
    assert [x.choices.kind for x in rollout.samples] == ["points", "units"] * QUICK.choices
    worth = torch.stack([x.advantage for x in rollout.samples])
    assert worth.mean().abs() < 1e-5
    assert worth.std() == pytest.approx(1.0, abs=1e-4)
    for sample in rollout.samples:
        figures = ppo.loss_parts(sample)
        assert figures["divergence"].abs() < 1e-6
        expected = -sample.advantage.mean().item()
        assert figures["policy"].item() == pytest.approx(expected, abs=1e-5)
        logits = ppo.policy.logits(sample.choices)
        spread = torch.distributions.Categorical(logits=logits).entropy().mean()
        assert figures["entropy"].item() == pytest.approx(spread.item(), rel=1e-4)
    # Another rollout goes on where this one ended.
    before = ppo.env.problem.clone(), ppo.env.choices_made.clone()
    assert ppo._next_choices.count.equal(Choices.of(ppo.env).count)
    ppo.learn(rollout)
    assert before[0].equal(ppo.env.problem)
    assert before[1].equal(ppo.env.choices_made)
    figures = ppo.loss_parts(rollout.samples[0])
    assert figures["divergence"] > 0


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_ppo__what_the_last_choice_is_worth(episodes, device, objective, monkeypatch):
    settings = PPOSettings(envs=16, choices=3, objective=objective)
    ppo = PPO(settings, FusedEnv(ProblemPool(episodes, device), settings.envs))
    step, made = ppo.env.step, []
    monkeypatch.setattr(ppo.env, "step", lambda actions: made.append(step(actions)) or made[-1])
    rollout = ppo.play()
    for (rewards, ended), sample in zip(made, rollout.samples, strict=True):
        expected = rewards[ended] if objective == "value" else rewards[ended].log()
        torch.testing.assert_close(sample.target[ended], expected.float())
    every = torch.cat([rewards[ended] for rewards, ended in made])
    assert rollout.ended == len(every) > 0
    assert rollout.reward.item() == pytest.approx(every.mean().item())
    assert rollout.length.item() == pytest.approx((1 / every).mean().item())


@pytest.mark.thorough
def test_ppo__makes_no_tensor_elsewhere(episodes, device):
    """With another default device, a tensor made without naming one could not be used."""
    ppo = PPO(QUICK, FusedEnv(ProblemPool(episodes, device), QUICK.envs))
    with torch.device("meta"):
        rollout = ppo.play()
        figures = ppo.loss_parts(rollout.samples[1])
        ppo.loss(figures).backward()
        greedy_lengths(ppo.policy, FusedEnv(ppo.env.pool, len(ppo.env.pool)))
    assert rollout.reward.device.type == figures["value"].device.type == device.type
    assert all(p.device.type == device.type for p in ppo.policy.parameters())


class Waits(TorchDispatchMode):
    """Counts what needs a number from the device, whichever device it is."""

    NAMES = ("_local_scalar_dense", "nonzero", "repeat_interleave.Tensor", "masked_select", "equal")

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = str(operation).removeprefix("aten.")
        self.count += name.startswith(self.NAMES) and not name.startswith("nonzero_")
        return operation(*args, **(kwargs or {}))


@pytest.mark.thorough
def test_waits__none_in_the_environment_and_few_in_a_rollout(episodes, device):
    env = FusedEnv(ProblemPool(episodes, device), QUICK.envs)
    ppo = PPO(QUICK, FusedEnv(env.pool, QUICK.envs))
    first = torch.zeros(QUICK.envs, dtype=torch.int64, device=device)
    with Waits() as waits:
        for check in (False, True):
            for turn in (0, 128):
                env.step(first + turn, check=check)
                env.masks()
                env.observation()
                env.outlook()
        env.reset()
    assert waits.count == 0
    with Waits() as waits:
        assert first.sum().item() == 0
    assert waits.count == 1
    with Waits() as waits:
        ppo.play()
    steps = 2 * QUICK.choices
    assert waits.count == 4 * steps + 2  # and two for the first choices of the next rollout


@pytest.mark.slow
def test_ppo__finds_shorter_plans(episodes, device):
    settings = PPOSettings(envs=64, iterations=6, choices=5, problems=40, part=40, rate=3e-3)
    ppo = PPO(settings, FusedEnv(ProblemPool(episodes, device), settings.envs))
    judge = FusedEnv(ppo.env.pool, len(ppo.env.pool))
    before = greedy_lengths(ppo.policy, judge).log().mean().exp()
    played = []
    for _ in range(settings.iterations):
        played.append(ppo.play())
        ppo.learn(played[-1])
    after = greedy_lengths(ppo.policy, judge).log().mean().exp()
    assert after < 0.95 * before
    assert played[-1].length < 0.8 * played[0].length
    assert played[-1].reward > 1.15 * played[0].reward


# Rainbow


def rainbow(episodes, device, **options):
    settings = replace(QUICK_RAINBOW, **options)
    return Rainbow(settings, FusedEnv(ProblemPool(episodes, device), settings.envs))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("steps", "objective"),
    [(1, "log"), (3, "value"), (4, "log"), *slow((1, "value"), (3, "log"), (4, "value"))],
)
def test_rainbow__keeps_what_happened(episodes, device, steps, objective, monkeypatch):
    """Each state, by a record of the episodes: its choice, the gain and what came later."""
    agent = rainbow(episodes, device, steps=steps, objective=objective)
    env, step, record = agent.env, agent.env.step, []

    def recorded(actions):
        record.append((state_of(env), actions, *step(actions)))
        return record[-1][2:]

    monkeypatch.setattr(env, "step", recorded)
    agent.play()
    agent.iteration += 1
    agent.play()
    n, length = env.count, 2 * agent.settings.choices
    ends = 0
    for parity, kind in enumerate(KINDS):
        memory = agent.memories[kind]
        assert memory.states == n * len(range(parity, length + 1, 2))
        choices = memory.known(2)
        for number in range(2 * memory.states):
            place, (block, i) = number // memory.states, divmod(number % memory.states, n)
            t, row = 2 * block + parity, {k: x[number] for k, x in memory.tensors.items()}
            end, t = place * length + min(t + steps, length), t + place * length
            over = [u for u in range(t, end) if record[u][3][i]]
            if not over and end < t + steps:
                assert row["priority"] == 0
                continue
            state, actions, _, _ = record[t]
            assert row["state"].equal(state[i].int())
            assert choices.at(torch.tensor([number])).action(row["rank"][None]) == actions[i]
            assert row["priority"] > 0
            assert bool(row["ended"]) == bool(over)
            ends += len(over)
            if over:
                reward = record[over[0]][2][i]
                worth = reward.log() if objective == "log" else reward
                assert row["gain"] == pytest.approx(worth.item(), rel=1e-6)
            else:
                later = agent.memories[KINDS[(parity + steps) % 2]].tensors["state"][row["after"]]
                expected = record[t + steps][0] if t + steps < 2 * length else state_of(env)
                assert later.equal(expected[i].int())
                assert row["gain"] == 0
    assert ends > 10


def test_choices__of_what_is_kept(episodes, device):
    """Made anew, taken one by one and joined they are those of the episode."""
    agent = rainbow(episodes, device, envs=16)
    seen = []
    for t in range(4):
        choices, state = Choices.of(agent.env), state_of(agent.env)
        again = choices_at(FusedEnv(agent.env.pool, 1), state, t % 2)
        for name, value in vars(choices).items():
            same = value == getattr(again, name) if name == "kind" else value.equal(
                getattr(again, name))  # fmt: skip
            assert same, name
        seen.append(choices)
        agent.env.step(choices.action(draw(agent.policy.logits(choices), agent.generator)))
    joined = Choices.joined(seen[::2])
    place = torch.tensor([20, 3, 3, 31], device=device)
    rated = quality(agent.policy, joined.at(place))
    for row, number in zip(rated, place.tolist(), strict=True):
        own = seen[2 * (number // 16)]
        expected = quality(agent.policy, own)[number % 16, : own.count[number % 16]]
        torch.testing.assert_close(row[: len(expected)], expected)
        assert (row[len(expected) :] == LOWEST).all()
    assert joined.at(place).actions.equal(
        torch.cat([joined.at(place[k : k + 1]).actions for k in range(4)])
    )


def test_quality__means_are_values_and_the_best_is_best_rated(episodes, device):
    agent = rainbow(episodes, device, envs=16)
    choices = Choices.of(agent.env)
    rated = quality(agent.policy, choices)
    for i, count in enumerate(choices.count.tolist()):
        assert (rated[i, count:] == LOWEST).all()
        value = agent.policy.values(choices)[i]
        assert rated[i, :count].mean().item() == pytest.approx(value.item(), abs=1e-5)
    logits = agent.policy.logits(choices)
    assert rated.argmax(dim=1).equal(logits.argmax(dim=1))  # so the planner needs no critic


def test_rainbow__targets_are_rewards_or_what_the_other_network_says(episodes, device):
    agent = rainbow(episodes, device, steps=2)
    agent.play()
    with torch.no_grad():
        for parameter in agent.target.parameters():
            parameter += 0.01
    known = {kind: memory.known(1) for kind, memory in agent.memories.items()}
    for kind in KINDS:
        row = {k: x[:16] for k, x in agent.memories[kind].tensors.items()}
        row["ended"] = torch.arange(16, device=device) % 2 == 0
        row["gain"] = torch.linspace(-2, -1, 16, device=device) * row["ended"]
        found = agent.targets(kind, row, known)
        assert found[::2].equal(row["gain"][::2])
        choices = known[kind].at(row["after"])  # two steps later it is the same turn
        online, other = quality(agent.policy, choices), quality(agent.target, choices)
        expected = other.gather(1, online.argmax(dim=1, keepdim=True))[:, 0]
        torch.testing.assert_close(found[1::2], expected[1::2].detach())
        row["ended"][:] = True
        assert agent.targets(kind, row, known).equal(row["gain"])


def test_memory__draws_by_priority_and_replaces_a_rollout(device):
    memory = Memory(2, 2, device)
    number = torch.arange(2, device=device)
    columns = {"rank": number, "gain": number, "after": number, "ended": number > 0}
    state, every = number[:, None].expand(-1, 16), number >= 0
    memory.put(0, [], every, state=state, **columns)
    assert memory.tensors["priority"].tolist() == pytest.approx([1e-3, 1e-3, 0.0, 0.0])
    memory.tensors["priority"][:2] = torch.tensor([4.0, 1.0], device=device)
    place, weight = memory.draw(30_000, 0.5, 1.0, torch.Generator(device).manual_seed(0))
    share = place.bincount(minlength=4) / len(place)
    assert share.tolist() == pytest.approx([2 / 3, 1 / 3, 0.0, 0.0], abs=0.02)
    assert weight[place == 1].mean() == pytest.approx(1.0)
    assert weight[place == 0].mean() == pytest.approx(0.5)
    memory.put(1, [], number > 0, state=state + 5, **columns)
    assert memory.tensors["priority"].tolist() == pytest.approx([4.0, 1.0, 0.0, 4.0])
    memory.put(0, [], every, state=state + 5, **columns)
    assert memory.tensors["state"][:, 0].tolist() == [5, 6, 5, 6]
    assert memory.tensors["priority"].tolist() == pytest.approx([4.0, 4.0, 0.0, 4.0])
    memory.forget(6, 2)
    assert memory.tensors["priority"].tolist() == pytest.approx([4.0, 0.0, 0.0, 0.0])


def test_rainbow__forgets_replaced_problems(episodes, device):
    agent = rainbow(episodes, device)
    agent.play()
    agent.env.pool.put(draw_part(9, 0, 20))
    agent.restart()
    for turn, memory in enumerate(agent.memories.values()):
        known = memory.tensors["priority"] > 0
        assert known.any()
        assert (memory.tensors["state"][known, 0] >= 20).all()
        kept = memory.known(1)
        memory.remake(1, FusedEnv(agent.env.pool, 1), turn)  # as in a training that goes on
        again = memory.known(1)
        place = known.nonzero()[:, 0]
        assert again.at(place).rows.equal(kept.at(place).rows)
    assert (agent.env.choices_made == 0).all()


@pytest.mark.slow
def test_rainbow__finds_shorter_plans(episodes, device):
    agent = rainbow(episodes, device, envs=64, iterations=12, choices=5, updates=10, batch=64)
    judge = FusedEnv(agent.env.pool, len(agent.env.pool))
    before = greedy_lengths(agent.policy, judge).log().mean().exp()
    for _ in range(agent.settings.iterations):
        agent.advance()
    after = greedy_lengths(agent.policy, judge).log().mean().exp()
    assert after < 0.9 * before


def test_pool__replaces_the_oldest(episodes, device):
    news = [draw_part(9, number, 20) for number in range(3)]
    pool = ProblemPool(episodes, device)
    for new in news:
        pool.put(new)
    expected = ProblemPool(concatenated([news[2], news[1]]), device)
    assert pool.outlooks.equal(expected.outlooks)
    for key, value in vars(pool.tensors).items():
        assert value.equal(getattr(expected.tensors, key)), key
    for key, value in pool.constant.items():
        assert value.equal(expected.constant[key]), key
    with pytest.raises(ValueError, match="divide"):
        pool.put(draw_part(9, 0, 3))


def trained(folder, settings=QUICK, **options):
    lines = []
    log = fused.train(settings, folder, say=lines.append, **options)
    with np.load(folder / fused.WEIGHTS) as weights:
        return log, dict(weights), lines


@pytest.mark.slow
def test_train__the_same_again_with_any_number_of_workers(tmp_path, device, monkeypatch):
    monkeypatch.setattr(fused, "HELD_OUT", 16)
    runs = [trained(tmp_path / str(k), device=device.type, workers=k) for k in (0, 1)]
    for log, _, _ in runs:
        for point in log["points"]:
            point.pop("seconds", None)
    (log, weights, lines), (log_again, again, _) = runs
    assert log["points"] == log_again["points"]
    assert all(np.array_equal(value, again[key]) for key, value in weights.items())
    assert [point["iteration"] for point in log["points"]] == [0, 1, 2, 3]
    assert log["samples"] == 3 * QUICK.samples == 3 * 48 * 6
    assert len(lines) == 4
    kept = json.loads((tmp_path / "0" / fused.LOG).read_text())
    assert PPOSettings(**kept["settings"]) == QUICK
    # The weights are those of a policy without torch, which plans as well.
    held_out = draw_part(QUICK.seed, fused.HELD_OUT_PART, 16)
    lengths = PlanPolicy(weights).lengths(held_out)
    expected = log["points"][-1]["held_out"]
    assert np.exp(np.log(lengths).mean()) == pytest.approx(expected, rel=0.02)
    other, _, _ = trained(
        tmp_path / "2", PPOSettings(**{**kept["settings"], "seed": 1, "iterations": 1}), workers=0
    )
    assert other["points"][0]["held_out"] != log["points"][0]["held_out"]


class Stop(Exception):
    """Ends a training in the middle."""


def interrupted(folder, settings, monkeypatch, iteration):
    """Train until an iteration is over, with a checkpoint behind each."""
    agent = Rainbow if isinstance(settings, RainbowSettings) else PPO
    played = agent.play

    def play(self):
        if self.iteration == iteration:
            raise Stop
        return played(self)

    monkeypatch.setattr(fused, "KEPT_EVERY", 0.0)
    with monkeypatch.context() as until, pytest.raises(Stop):
        until.setattr(agent, "play", play)
        fused.train(settings, folder, workers=0)


@pytest.mark.thorough
@pytest.mark.parametrize("quick", [QUICK_RAINBOW, *slow(QUICK)])
def test_train__goes_on_as_if_it_had_not_been_interrupted(tmp_path, monkeypatch, quick):
    """Behind refills that have gone around the pool, and in the middle of episodes."""
    monkeypatch.setattr(fused, "HELD_OUT", 4)
    settings = replace(quick, envs=8, iterations=4, problems=4, part=2, refill=1, family="cnn")
    whole, weights, _ = trained(tmp_path / "whole", settings, workers=0)
    interrupted(tmp_path / "parts", settings, monkeypatch, 3)
    assert [x.name for x in (tmp_path / "parts").iterdir()] == [CHECKPOINT]
    with pytest.raises(ParenvsError, match="interrupted; continue with --resume"):
        fused.train(settings, tmp_path / "parts")
    with pytest.raises(ParenvsError, match="with seed 0, not 1"):
        fused.train(replace(settings, seed=1), tmp_path / "parts", resume=True)
    with pytest.raises(ParenvsError, match="no training to continue"):
        fused.train(settings, tmp_path / "whole", resume=True)
    log, again, _ = trained(tmp_path / "parts", settings, workers=0, resume=True)
    assert all(np.array_equal(value, again[key]) for key, value in weights.items())
    drop = [{k: v for k, v in p.items() if k != "seconds"} for p in (*whole["points"],)]
    assert [{k: v for k, v in p.items() if k != "seconds"} for p in log["points"]] == drop
    assert not (tmp_path / "parts" / CHECKPOINT).exists()


FEW = {"envs": 4, "problems": 4, "part": 4, "family": "cnn"}
STOPPED = {"ppo": replace(QUICK, **FEW), "rainbow": replace(QUICK_RAINBOW, **FEW, kept=2)}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """The arrays that each agent of ``STOPPED`` keeps behind its first iteration."""
    kept = {}
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.setattr(fused, "HELD_OUT", 4)
        for agent, settings in STOPPED.items():
            folder = tmp_path_factory.mktemp(agent)
            interrupted(folder, settings, patch, 1)
            with np.load(folder / CHECKPOINT) as stored:
                kept[agent] = dict(stored)
    return kept


@pytest.mark.thorough
@each("name", ["env/cuts", "env/problem", "random/choices", "adam/0/exp_avg"])
def test_checkpoint__wrong_arrays_are_named(checkpoints, tmp_path, monkeypatch, name):
    monkeypatch.setattr(fused, "HELD_OUT", 4)
    settings, arrays, path = STOPPED["ppo"], checkpoints["ppo"], tmp_path / CHECKPOINT
    np.savez(path, **{**arrays, name: arrays[name].astype(np.float16)})
    with pytest.raises(ParenvsError, match=f"array '{name}'"):
        fused.train(settings, tmp_path, workers=0, resume=True)
    if name.startswith("env/"):
        np.savez(path, **{**arrays, name: arrays[name] + 999})
        with pytest.raises(ParenvsError, match=f"array '{name}' must hold numbers from 0 to"):
            fused.train(settings, tmp_path, workers=0, resume=True)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ParenvsError, match="cannot be read"):
        fused.train(settings, tmp_path, workers=0, resume=True)


@pytest.mark.thorough
@each(
    ("name", "value", "words"),
    [
        ("state", 999, "must hold numbers from 0 to"),
        ("after", -1, "must hold numbers from 0 to"),
        ("rank", 127, "has a choice too many"),
    ],
)
def test_checkpoint__what_a_memory_cannot_hold(
    checkpoints, tmp_path, monkeypatch, name, value, words
):
    monkeypatch.setattr(fused, "HELD_OUT", 4)
    member, arrays = f"memory/units/{name}", checkpoints["rainbow"]
    wrong = {**arrays, member: np.full_like(arrays[member], value)}
    np.savez(tmp_path / CHECKPOINT, **wrong)
    with pytest.raises(ParenvsError, match=f"array '{member}' {words}"):
        fused.train(STOPPED["rainbow"], tmp_path, workers=0, resume=True)


def test_draw_parts__are_what_is_drawn():
    made = draw_parts(3, 4, "cnn", first=2)
    for number in (2, 3):
        part, expected = next(made), draw_part(3, number, 4, "cnn")
        assert np.array_equal(part.outlooks, expected.outlooks)
        assert np.array_equal(part.batch.forward, expected.batch.forward)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_main__no_gpu(tmp_path, capsys):
    assert main(["--device", "cuda", "--out", str(tmp_path / "x")]) == 2
    out, err = capsys.readouterr()
    assert err.count("\n") == 1
    assert "--device cuda" in err
    assert "--device cpu" in err
    assert not out
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--device", "tpu"], "tpu"),
        (["--device", "cuda:x"], "cuda:x"),
        (["--envs", "0"], "envs"),
        (["--part", "7"], "divide"),
        (["--refill", "-1"], "refill"),
        (["--workers", "-1"], "workers"),
    ],
)
def test_main__settings_without_sense(tmp_path, capsys, options, word):
    assert main([*options, "--out", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert word in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_command__runs_as_a_module_and_its_parts_are_importable(tmp_path):
    from parenvs.agents.learning.fused import PPOSettings as Lazy
    from parenvs.agents.learning.fused import train

    assert (Lazy, train) == (PPOSettings, fused.train)
    module = ["-m", "parenvs.agents.learning.fused", "--device", "tpu", "--out", str(tmp_path)]
    done = subprocess.run([sys.executable, *module], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "tpu" in done.stderr
    assert "Warning" not in done.stderr


def test_main(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(fused, "HELD_OUT", 4)
    options = "--envs 4 --iterations 1 --choices 1 --problems 4 --part 4 --family cnn --workers 0"
    assert main([*options.split(), "--out", str(tmp_path)]) == 0
    assert "8 samples" in capsys.readouterr().out
    assert {x.name for x in tmp_path.iterdir()} == {fused.WEIGHTS, fused.LOG}


def test_choices__of_turns_that_differ_are_refused(episodes):
    env = FusedEnv(ProblemPool(episodes, torch.device("cpu")), 8)
    env.step(torch.full((8,), 5), check=True)
    with pytest.raises(ValueError, match="same turn"):
        Choices.of(env)
    with pytest.raises(ParenvsError, match="iterations"):
        fused.check(PPOSettings(iterations=0))
    with pytest.raises(ParenvsError, match="objective"):
        fused.check(PPOSettings(objective="length"))


# The weights of a run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fused")
    with pytest.MonkeyPatch.context() as patch, one_thread():
        patch.setattr(fused, "HELD_OUT", 4)
        fused.train(replace(QUICK, **FEW, iterations=1), folder, workers=0)
    return folder


@pytest.mark.thorough
def test_weights__are_judged_on_a_set(run_folder, monkeypatch, capfd, tmp_path):
    """As the plans that they make; each is a plan of its problem."""
    policy = PlanPolicy.load(run_folder / fused.WEIGHTS)
    found = evaluate_set(policy, "plan-test", first=4)
    for name, value in zip(found.problems, found.values[0], strict=True):
        problem = set_of("plan-test").load(name)
        space = PointSpace.build(problem)
        made = policy.plan(space, 1, np.random.default_rng(0))
        plan = problem.plan(*space.plan(made.cuts[0], made.units[0]))
        assert value == pytest.approx(problem.report(plan).value)
    with pytest.raises(ParenvsError, match="hybrid-test is a set of HybridPlan-v0; weights play"):
        evaluate_set(policy, "hybrid-test", first=1)
    words = ("evaluate", str(run_folder), "--set", "plan-test", "--family", "cnn")
    status, out, _ = caller(monkeypatch, capfd, tmp_path)(*words)
    assert status == 0
    assert "regret, interquartile mean" in out


@each(
    ("change", "words"),
    [
        (lambda a: a.pop("units.out.bias"), "units.out.bias"),
        (lambda a: a.update({"points.row.weight": np.zeros((3, 3))}), "points.row.weight"),
        (lambda a: a.update(more=np.zeros(1)), "more"),
        (lambda a: a.update({"units.out.bias": np.full(1, np.nan)}), "not finite"),
    ],
)
def test_weights__others_are_refused(run_folder, tmp_path, change, words):
    with np.load(run_folder / fused.WEIGHTS) as stored:
        arrays = dict(stored)
    change(arrays)
    path = tmp_path / fused.WEIGHTS
    np.savez(path, **arrays)
    with pytest.raises(ParenvsError, match=words) as refused:
        PlanPolicy.load(path)
    assert str(path) in str(refused.value)
    path.write_bytes(b"PK\x03\x04")
    with pytest.raises(ParenvsError, match="no weights of a planner"):
        PlanPolicy.load(path)
