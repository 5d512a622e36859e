"""Folders of ``torch.distributed.checkpoint``: written, read, and not trusted."""

import io
import json
import os
import pickle
import shutil
import zipfile
from types import SimpleNamespace

import pytest
from cases import each

from parenvs.errors import ParenvsError

torch = pytest.importorskip("torch")
pytest.importorskip("jax")
import torch.distributed.checkpoint as dcp  # noqa: E402

from parenvs.exports.distributed import metadata_of  # noqa: E402

pytestmark = pytest.mark.thorough


class Evil:
    """Runs a command as it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch ran",)


OWN = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"
NONE = "no metadata of torch.distributed.checkpoint"


@each(
    ("content", "words"),
    [
        (pickle.dumps(Evil()), "'posix.system' is not read|'nt.system' is not read"),
        (b"no pickle", NONE),
        (pickle.dumps({}), NONE),
        (None, "no folder of torch.distributed.checkpoint"),
        (b"\x80\x02" + OWN + b"N}X\x06\x00\x00\x00strange", NONE),  # ends too early
        # A class itself is given an attribute.
        (b"\x80\x02" + OWN + b"N}X\x07\x00\x00\x00strangeK\x05s\x86b.", NONE),
        # A tuple so deep that its hash ends the process; more memory than there is.
        (b"\x80\x02}()" + b"\x85" * 300_000 + b"K\x01u.", "a key is neither a text nor a place"),
        (b"\x80\x05\x96" + (2**62).to_bytes(8, "little") + b".", NONE),
        (b"\x80\x02" + OWN + b")\x81}X\x07\x00\x00\x00versionK\x05sb.", "it has no tensors"),
    ],
)
def test_metadata__runs_nothing(tmp_path, monkeypatch, content, words):
    from torch.distributed.checkpoint.metadata import Metadata

    monkeypatch.chdir(tmp_path)
    (tmp_path / "dcp").mkdir(exist_ok=True)
    path = tmp_path / "dcp" / ".metadata"
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ParenvsError, match=words):
        metadata_of("dcp")
    assert not (tmp_path / "ran").exists() and not hasattr(Metadata, "strange")


STATE = {"model": {"a": torch.ones(3, 2, dtype=torch.bfloat16), "b": torch.tensor(3)}, "lr": 0.1}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder of PyTorch's own, and its metadata."""
    folder = tmp_path_factory.mktemp("dcp")
    dcp.save(STATE, checkpoint_id=folder, no_dist=True)
    return folder, dcp.FileSystemReader(folder).read_metadata()


def test_metadata__is_that_of_pytorch(written):
    folder, own = written
    found = metadata_of(folder)
    assert (found.state_dict_metadata, found.storage_data) == (
        own.state_dict_metadata, own.storage_data,
    )  # fmt: skip
    assert found.state_dict_metadata["model.a"].size == (3, 2)


@each(
    ("change", "words"),
    [
        (lambda x, tensor, place: setattr(place, "relative_path", "../x"), "no file of the folder"),
        (lambda x, tensor, place: setattr(place, "relative_path", "/dev/zero"), "no file of the"),
        (lambda x, tensor, place: setattr(place, "length", 10**15), "of '__0_0.distcp', which has"),
        (lambda x, tensor, place: setattr(place, "offset", -1), "a place of a tensor is none"),
        (lambda x, tensor, place: setattr(place, "length", 0.5), "a place of a tensor is none"),
        (lambda x, tensor, place: setattr(place, "length", 3), "is in no file"),
        (
            lambda x, tensor, place: setattr(place, "transform_descriptors", ["zstd"]),
            "'model.a' is compressed",
        ),
        (lambda x, tensor, place: setattr(tensor, "size", torch.Size([4, 2])), "are not the whole"),
        (lambda x, tensor, place: setattr(tensor, "size", (3, 2)), "'model.a' is no tensor"),
        (lambda x, tensor, place: setattr(tensor, "properties", None), "'model.a' is no tensor"),
        (lambda x, tensor, place: setattr(tensor, "chunks", [None]), "a piece is none"),
        (
            lambda x, tensor, place: setattr(tensor.chunks[0], "sizes", torch.Size([2, 3])),
            "a piece is outside of its",
        ),
        (lambda x, tensor, place: x.storage_data.clear(), "is in no file"),
        (lambda x, tensor, place: setattr(x, "storage_data", [1]), "it has no tensors"),
    ],
)
def test_metadata__is_checked(written, tmp_path, change, words):
    folder, own = written
    shutil.copytree(folder, tmp_path / "dcp", dirs_exist_ok=True)
    copied = pickle.loads(pickle.dumps(own))
    place = next(x for key, x in copied.storage_data.items() if key.fqn == "model.a")
    change(copied, copied.state_dict_metadata["model.a"], place)
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(copied))
    with pytest.raises(ParenvsError, match=words):
        metadata_of(tmp_path / "dcp")


def packed_anew(folder, data, metadata, change):
    """The file of a folder with each piece packed anew; its metadata says where they are now."""
    own, out = pickle.loads(metadata), io.BytesIO()
    for place in own.storage_data.values():
        piece, at = io.BytesIO(data[place.offset :][: place.length]), out.tell()
        made = io.BytesIO()
        with zipfile.ZipFile(piece) as old, zipfile.ZipFile(made, "w") as new:
            for name in old.namelist():
                content, kind = change(name, old.read(name))
                new.writestr(name, content, kind)
        out.write(made.getvalue())
        place.offset, place.length = at, out.tell() - at
    (folder / ".metadata").write_bytes(pickle.dumps(own))
    return out.getvalue()


def linear():
    module = torch.nn.Linear(4, 3)
    items = dict(module.named_parameters()).items
    part = SimpleNamespace(named_parameters=items, name_of=lambda name: name)
    return module, SimpleNamespace(parts=[part])


def test_export__learning_rates_and_schedulers_go_on(tmp_path, alone):
    """Six steps of a schedule, or three, a folder, and three: the same rate."""
    from parenvs.exports.distributed import export, load

    (module, parallel), (other, other_parallel) = linear(), linear()
    optimizer, again = (torch.optim.Adam(x.parameters(), lr=0.1) for x in (module, other))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for turn in range(6):
        module(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        scheduler.step()
        if turn == 2:
            export(tmp_path, parallel, optimizer, 3)
    assert load(tmp_path, other_parallel, again) == 3 and again.param_groups[0]["lr"] == 0.05
    scheduler = torch.optim.lr_scheduler.StepLR(again, 2, 0.5, 2)
    for _ in range(3):
        again.step()
        scheduler.step()
    assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] == 0.0125


def test_load__damaged_files_are_one_line(tmp_path, alone):
    """The optimizer is as before; a whole folder is read."""
    from parenvs.exports.distributed import load

    module, parallel = linear()
    named, optimizer = dict(module.named_parameters()), torch.optim.Adam(module.parameters())
    state = {"model": {name: torch.ones_like(x) for name, x in named.items()}}
    state["optimizer.state.weight.exp_avg"] = torch.full((3, 4), 2.0)
    dcp.save({**state, "parenvs.steps": torch.tensor(7)}, checkpoint_id=tmp_path)
    (path,) = tmp_path.glob("*.distcp")
    data, metadata = path.read_bytes(), (tmp_path / ".metadata").read_bytes()
    for broken in (b"\0" * len(data), data.replace(b"PK", b"KP")):
        path.write_bytes(broken)
        with pytest.raises(ParenvsError, match=r"damaged \(process 0: ") as caught:
            load(tmp_path, parallel, optimizer)
        assert "\n" not in str(caught.value) and not optimizer.state
    # The same pieces, compressed, and with a pickle that takes all memory.
    bomb = b"\x80\x02cbuiltins\nbytearray\n\x8a\x09" + (2**36).to_bytes(9, "little") + b"\x85R."
    for change, words in (
        (lambda name, content: (content, zipfile.ZIP_DEFLATED), "compressed"),
        (lambda name, content: (bomb if "pkl" in name else content, 0), "'builtins.bytearray'"),
    ):
        path.write_bytes(packed_anew(tmp_path, data, metadata, change))
        with pytest.raises(ParenvsError, match=rf"damaged \(process 0: .*{words}"):
            load(tmp_path, parallel, optimizer)
    (tmp_path / ".metadata").write_bytes(metadata)
    path.write_bytes(data)
    with pytest.warns(UserWarning, match="has no learning rates; those of the optimizer stay"):
        assert load(tmp_path, parallel, optimizer) == 7
    assert (module.weight == 1).all() and (optimizer.state[module.weight]["exp_avg"] == 2).all()


@pytest.mark.slow
def test_export__other_plans_and_programs_go_on(tmp_path):
    """Three plans, the third one the first with other ranks, and PyTorch alone."""
    import live_work
    import resharding

    from parenvs.exports.torch import torch_plan

    graph = resharding.example.read()
    plans = [resharding.plan_of(graph, "net.npz", 4, *resharding.FOUR[x])
             for x in ("P2 D2", "T2 D2 ZeRO 3", "P2 D2")]  # fmt: skip
    pairs = [(plan, torch_plan(plan, graph)) for plan in plans]
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
