"""Training and independent runs on Ray, with processes that are killed (``make ray-test``)."""

import json
import os
import signal
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("sb3_contrib")
pytest.importorskip("ray", reason="needs the extra 'ray' (make ray-test)")

import ray
import torch
from interrupt import Interrupt
from stable_baselines3.common.callbacks import BaseCallback
from typer.testing import CliRunner

from parenvs.agents.learning.distributed.session import session
from parenvs.agents.learning.distributed.tasks import on_ray
from parenvs.agents.learning.pretrained.imitate import Recipe
from parenvs.agents.learning.pretrained.pretrain import WEIGHTS, pretrain
from parenvs.agents.learning.train.config import Config
from parenvs.agents.learning.train.run import load_model, train
from parenvs.agents.references import ReferenceFile
from parenvs.errors import ParenvsError

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # tasks cannot import tests
UPDATE = 64 * 8 * 2
RUN = Config(env_kwargs={"instance": "vgg-19", "cluster": "B"}, steps=UPDATE, seed=5)


@pytest.fixture(scope="module", autouse=True)
def one_ray():
    with session(processes=4):
        yield
    assert not ray.is_initialized()


def spread(word, steps=UPDATE, **counts):
    return replace(RUN, steps=steps, distribution={"word": word, **counts})


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.policy.parameters()])


def distance(one, other):
    return float((flat(one) - flat(other)).abs().max())


class Kill(BaseCallback):
    """Kills actors, one after each of some rollouts: ``when`` is "play" or "learn"."""

    def __init__(self, rollouts, when):
        super().__init__()
        self.rollouts, self.when, self.killed = list(rollouts), when, []

    def _on_step(self):
        return True

    def _kill(self):
        workers = self.model.workers
        if self.rollouts and workers.number == self.rollouts[0]:
            self.rollouts.pop(0)
            actor = workers._actors[len(self.killed) % len(workers._actors)]
            self.killed.append(ray.get(actor.pid.remote()))
            os.kill(self.killed[-1], signal.SIGKILL)

    def _on_rollout_start(self):
        if self.when == "play":
            self._kill()

    def _on_rollout_end(self):
        if self.when == "learn":
            self._kill()


@pytest.fixture(scope="module")
def single():
    return train(replace(RUN, steps=3 * UPDATE))


@pytest.mark.parametrize("word", ["actors", "learners"])
def test_ray__one_process_is_the_single_one(single, word):
    """To the last bit: the same rollouts, the same updates, the same best plan."""
    result, model = train(spread(word, 3 * UPDATE, **{word: 1}))
    assert distance(model, single[1]) == 0
    same = ("value", "actions", "steps", "best_steps", "episodes")
    assert [getattr(result, k) for k in same] == [getattr(single[0], k) for k in same]
    assert model.workers.seconds["environment"] > 0 and model.workers.failures == 0


def test_ray__an_update_is_the_same_for_one_learner_and_for_several():
    """Two actors play the same for one learner as for themselves."""
    _, one = train(spread("actors", actors=2))
    _, both = train(spread("learners", learners=2))
    untrained = train(spread("actors", steps=1, actors=1))[1]
    assert distance(one, both) < 1e-5 < 1e-3 < distance(one, untrained)


@pytest.mark.parametrize(("word", "when"), [("actors", "play"), ("learners", "play"),
                                            ("learners", "learn")])  # fmt: skip
def test_ray__killed_actors_change_nothing(word, when):
    config = spread(word, 4 * UPDATE, **{word: 2})
    result, model = train(config)
    kill = Kill([1, 3], when)
    after, other = train(config, callbacks=[kill])
    assert len(kill.killed) == 2 and other.workers.failures >= 2
    assert distance(model, other) == 0
    assert replace(after, seconds=0) == replace(result, seconds=0)


@pytest.mark.parametrize("word", ["actors", "learners"])
def test_ray__a_run_goes_on_where_it_was(tmp_path, word):
    config = spread(word, 4 * UPDATE, **{word: 2})
    result, model = train(config, tmp_path / "whole", checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        train(
            config, tmp_path / "run", checkpoint_every=1, callbacks=[Interrupt(int(2.5 * UPDATE))]
        )
    after, other = train(config, tmp_path / "run", resume=True)
    assert distance(model, other) == 0
    assert (after.value, after.actions, after.best_steps, after.episodes) == (
        result.value, result.actions, result.best_steps, result.episodes
    )  # fmt: skip
    assert distance(load_model(tmp_path / "run"), model) == 0
    with pytest.raises(ParenvsError, match="another configuration"):
        train(spread(word, 4 * UPDATE, **{word: 3}), tmp_path / "run", resume=True)


def test_ray__drawn_problems(tmp_path):
    """A killed actor goes on with other problems; the run ends, and is judged."""
    config = Config("PipelinePlan-v0", {"draw": 2}, steps=2 * 2048, seed=1,
                    distribution={"word": "actors", "actors": 2})  # fmt: skip
    kill = Kill([1], "play")
    result, _ = train(config, tmp_path / "run", callbacks=[kill])
    assert kill.killed and result.steps == 4096 and result.judged_on == "plan-validation"


def test_ray__asynchronous(tmp_path):
    """RLlib trains the network of the PPO, whose weights a run's folder holds as any other's."""
    result, model = train(spread("async", 3 * UPDATE, actors=2, learners=1), tmp_path / "run")
    assert result.steps >= 3 * UPDATE and result.episodes >= 3 * UPDATE / 2
    untrained = train(spread("actors", steps=1, actors=1))[1]
    assert distance(load_model(tmp_path / "run"), model) == 0 < distance(model, untrained)


def _once(folder, number):
    """Kill the process of the first call with each even number."""
    mark = Path(folder) / str(number)
    if number % 2 == 0 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def _refuse(number):
    raise ParenvsError(f"no {number}")


def test_tasks__are_performed_again(tmp_path):
    found = list(on_ray(partial(_once, tmp_path), range(5), jobs=2, in_order=True))
    assert found == [0, 1, 4, 9, 16]
    assert sorted(on_ray(partial(_once, tmp_path), range(5), jobs=3)) == found


def test_tasks__errors_are_raised_as_they_were():
    with pytest.raises(ParenvsError, match=r"^no 3$"):
        list(on_ray(_refuse, [3], jobs=1))


def test_references__as_tasks(tmp_path, capsys):
    path = tmp_path / "some.json"
    path.write_text(json.dumps({"3": {"length": 3.0, "bound": 1.0}}))
    file = ReferenceFile(
        "some.json", "python -m some", lambda: map(str, range(2, 6)), int,
        lambda number: {"length": float(number), "bound": 1.0}, lambda number, row: "",
    )  # fmt: skip
    assert file.main(["--out", str(path), "--engine", "ray"]) == 0
    assert list(json.loads(path.read_text())) == ["2", "3", "4", "5"]
    assert "4 references, 3 made" in capsys.readouterr().out


def test_leaderboard_references__as_tasks(tmp_path, monkeypatch):
    """Solved as tasks and one by one: the same list, to the last bit."""
    from parenvs.leaderboard import references

    few = lambda task, _: references.KINDS[task].problems(["vgg-19"])  # noqa: E731
    monkeypatch.setattr(references, "problems", few)
    for engine in ("local", "ray"):
        path = tmp_path / f"{engine}.json"
        arguments = ["--tasks", "data-parallel", "--out", str(path), "--engine", engine]
        assert references.main(arguments) == 0
    assert (tmp_path / "local.json").read_bytes() == (tmp_path / "ray.json").read_bytes()


def test_pretrain__is_the_same(tmp_path):
    recipe = Recipe(seed=3, parts=2, part=8, passes=1, hidden=8)
    for engine in ("local", "ray"):
        pretrain(recipe, tmp_path / engine, 1, engine=engine)
    assert (tmp_path / "local" / WEIGHTS).read_bytes() == (tmp_path / "ray" / WEIGHTS).read_bytes()


TIMES = ("seconds", "target_seconds")


def lines_of(path):
    found = [json.loads(line) for line in path.read_text().splitlines()]
    found = [{k: v for k, v in one.items() if k not in TIMES} for one in found]
    return sorted(found, key=lambda one: (one["agent"], one["problem"], one["seed"]))


def test_bench__lines_are_the_local_engine_s(tmp_path):
    from parenvs.cli import app as cli

    runner = CliRunner()
    for engine in ("local", "ray"):
        arguments = ["bench", "agents", "--quick", "--engine", engine, "--out"]
        done = runner.invoke(cli.app, [*arguments, str(tmp_path / engine), "--jobs", "2"])
        assert done.exit_code == 0, done.output
    local, other = (lines_of(tmp_path / engine / "agents.jsonl") for engine in ("local", "ray"))
    assert len(local) == 2 and local == other
