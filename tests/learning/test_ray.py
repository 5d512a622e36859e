"""Independent runs and distributed trainings on Ray, with processes that are killed."""

import json
import sys
from dataclasses import replace

import pytest

pytest.importorskip("sb3_contrib")
pytest.importorskip("ray", reason="needs the extra 'ray'")

import ray

from benchmarks.references import ReferenceFile
from parenvs.agents.learning.config import TrainConfig
from parenvs.agents.learning.ray_tasks import session
from parenvs.agents.learning.trainer import Training, train

pytestmark = pytest.mark.slow
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # tasks cannot import tests


@pytest.fixture(scope="module", autouse=True)
def one_ray():
    with session(processes=8):
        yield
    assert not ray.is_initialized()


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
    from benchmarks import leaderboard_references as references

    few = lambda task, *_: references.kind_of(task).problems(["vgg-19"])  # noqa: E731
    monkeypatch.setattr(references, "unsolved", few)
    monkeypatch.setattr("secrets.randbelow", lambda _: 7)  # of a list's seed
    for engine in ("local", "ray"):
        path = tmp_path / f"{engine}.json"
        arguments = ["--tasks", "data-parallel", "--out", str(path), "--engine", engine]
        assert references.main(arguments) == 0
    assert (tmp_path / "local.json").read_bytes() == (tmp_path / "ray.json").read_bytes()


@pytest.mark.parametrize("word", ["actors", "environments", "server"])
def test_words__on_ray_are_those_of_one_process(word, monkeypatch):
    """An actor of Ray is killed on the way."""
    settings = {"envs": 8, "turns": 8, "turns_a_step": 16}
    config = TrainConfig(env_id="Acrobot-v1", agent="ppo", steps=384, settings=settings)
    expected = train(config).algorithm.net.state_dict()
    update, count = Training.update, []

    def killing(self):
        count.append(1)
        if len(count) == 4:
            team = self.team
            ray.kill((team.learners[0].play if team.alone else team).engine.actors[0])
        update(self)

    monkeypatch.setattr(Training, "update", killing)
    lines = []
    trained = train(replace(config, distribution=word), say=lines.append, engine="ray")
    assert sum("on from the last checkpoint" in line for line in lines) == 1
    for name, found in trained.algorithm.net.state_dict().items():
        assert (found - expected[name]).abs().max() < 1e-5
