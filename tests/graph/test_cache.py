"""A model that was lowered is kept until something changes that it came from."""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import ModuleType

import pytest

from parenvs.graph import cache
from parenvs.graph.graph import Role
from parenvs.graph.sources import Lowered

MODEL = Lowered(b"a module" * 9, "Net", (Role.VARIABLE, Role.BATCH), ("assumed",), ("[0]['q']",))


class Made:
    """Lowers a model whose code is in modules of the user; counts how often."""

    def __init__(self, monkeypatch, *files):
        self.count = 0
        for file in files:
            module = ModuleType(f"{file.stem}_kept")
            module.__file__ = str(file)
            monkeypatch.setitem(sys.modules, module.__name__, module)

    def __call__(self):
        self.count += 1
        return MODEL


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The cache folder of the user."""
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


def written(file, text):
    """Write a file as one that was there before."""
    file.write_text(text)
    past = time.time_ns() - 10**10
    os.utime(file, ns=(past, past))
    return file


def read(make, name="model.py:build"):
    with cache.enabled():
        return cache.load_or_make((name, None), make)


def test_kept__is_what_was_lowered(place, tmp_path, monkeypatch):
    make = Made(monkeypatch, written(tmp_path / "sizes.py", "8"))
    first, second = read(make), read(make)
    assert make.count == 1
    assert (first.kept, second.kept) == (False, True)
    assert second == replace(MODEL, kept=True)
    assert place.stat().st_mode & 0o77 == 0


def test_kept__changed_contents_are_read_anew_and_back_again_are_kept(place, tmp_path, monkeypatch):
    sizes = written(tmp_path / "sizes.py", "8")
    make = Made(monkeypatch, sizes)
    read(make)
    written(sizes, "9")  # of the same size and time
    assert not read(make).kept
    written(sizes, "8")
    sizes.touch()
    assert read(make).kept


def test_kept__other_versions_and_settings_are_read_anew(place, monkeypatch):
    make = Made(monkeypatch)
    read(make)
    monkeypatch.setenv("OTHER", "1")
    assert read(make).kept
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    assert not read(make).kept
    monkeypatch.setattr(cache.metadata, "distributions", lambda: [])
    assert not read(make).kept
    assert read(make).kept


@pytest.mark.parametrize("damage", [
    lambda x: x[: len(x) // 2], lambda x: x[:-3], lambda x: b"", lambda x: b"[]\n",
    lambda x: b"{}\n" + x.partition(b"\n")[2], lambda x: b"\xff" + x,
    lambda x: x.partition(b"\n")[0] + b"\n" + b"other",
    lambda x: x.replace(b'"roles": [0', b'"roles": [77'),
    lambda x: x.replace(b'"files": {', b'"files": {"a\\u0000b": 3, '),
])  # fmt: skip
def test_kept__a_broken_entry_is_made_again(place, tmp_path, monkeypatch, damage):
    make = Made(monkeypatch, written(tmp_path / "sizes.py", "8"))
    read(make)
    (entry,) = place.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert not read(make).kept
    assert read(make).kept


def test_kept__a_folder_that_cannot_be_is_no_error(place, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    make = Made(monkeypatch)
    for folder in (str(tmp_path / "file"), ""):
        monkeypatch.setenv(cache.FOLDER, folder)
        assert not read(make).kept
        assert not read(make).kept


def test_kept__files_that_change_meanwhile_are_not_kept(place, tmp_path, monkeypatch):
    future = time.time_ns() + 10**10
    (tmp_path / "sizes.py").write_text("8")
    os.utime(tmp_path / "sizes.py", ns=(future, future))
    make = Made(monkeypatch, tmp_path / "sizes.py")
    read(make)
    assert not read(make).kept


@pytest.mark.slow
def test_kept__readers_and_writers_side_by_side(place, monkeypatch):
    make = Made(monkeypatch)
    with cache.enabled(), ThreadPoolExecutor(8) as pool:
        models = list(pool.map(lambda _: cache.load_or_make(("model", None), make), range(40)))
    assert {model.proto for model in models} == {MODEL.proto}
    assert len(list(place.iterdir())) == 1
