"""Folders of ``torch.distributed.checkpoint``: written, read, and not trusted."""

import json
import os
import pickle

import pytest
from cases import each

from parenvs.errors import ParenvsError

torch = pytest.importorskip("torch")
pytest.importorskip("jax")
pytestmark = pytest.mark.thorough


class Evil:
    """Runs a command as it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch ran",)


@each(
    ("content", "words"),
    [
        (pickle.dumps(Evil()), "posix.system is not read|nt.system is not read"),
        (b"no pickle", "no metadata of torch.distributed.checkpoint"),
        (pickle.dumps({}), "no metadata of torch.distributed.checkpoint"),
        (None, "no folder of torch.distributed.checkpoint"),
    ],
)
def test_metadata__runs_nothing(tmp_path, monkeypatch, content, words):
    from parenvs.exports.checkpoint.distributed import _metadata

    monkeypatch.chdir(tmp_path)
    (tmp_path / "dcp").mkdir(exist_ok=True)
    path = tmp_path / "dcp" / ".metadata"
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ParenvsError, match=words):
        _metadata("dcp")
    assert not (tmp_path / "ran").exists()


def test_metadata__is_that_of_pytorch(tmp_path):
    import torch.distributed.checkpoint as dcp

    from parenvs.exports.checkpoint.distributed import _metadata

    state = {"model": {"a": torch.ones(3, 2, dtype=torch.bfloat16)}, "lr": 0.1}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    found = _metadata(tmp_path / "dcp")
    own = dcp.FileSystemReader(tmp_path / "dcp").read_metadata()
    assert (found.state_dict_metadata, found.storage_data) == (
        own.state_dict_metadata, own.storage_data,
    )  # fmt: skip
    assert found.state_dict_metadata["model.a"].size == (3, 2)


@pytest.mark.slow
def test_export__other_plans_and_programs_go_on(tmp_path):
    """Three plans, the third one the first with other ranks, and PyTorch alone."""
    import live_work
    import resharding
    import torch.distributed.checkpoint as dcp

    graph = resharding.example.read()
    plans = [resharding.plan_of(graph, "net.npz", 4, *resharding.FOUR[x])
             for x in ("P2 D2", "T2 D2 ZeRO 3", "P2 D2")]  # fmt: skip
    pairs = [(plan, resharding.torch_plan(plan, graph)) for plan in plans]
    job = {"folder": str(tmp_path), "plans": pairs}
    resharding.example.start(4, job, live_work.exchange)
    for rank in range(4):
        curve = json.loads((tmp_path / f"{rank}.json").read_text())
        assert curve == pytest.approx(resharding.alone(6), rel=1e-5)
    model = resharding.example.Transformer()
    dcp.load({"model": model.state_dict()}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    words, targets = resharding.example.batch()
    value = resharding.example.loss(model(words), targets).item()
    assert value == pytest.approx(resharding.alone(5)[4], rel=1e-5)
