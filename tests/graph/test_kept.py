"""A model that was lowered is kept until something changes that it came from."""

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import ModuleType

import pytest

from parenvs.graph import kept
from parenvs.graph.graph import Role
from parenvs.graph.pytorch.read import Lowered

MODEL = Lowered(b"a module" * 9, "Net", (Role.VARIABLE, Role.BATCH), ("assumed",), ("[0]['q']",))


class Made:
    """Lowers a model whose code is in files; counts how often."""

    def __init__(self, *files, code=""):
        self.files, self.code, self.count = files, code, 0

    def __call__(self):
        self.count += 1
        for file in self.files:
            file.read_text()
        exec(compile(self.code, "/users/model.py", "exec"), {"__name__": "model"})
        return MODEL


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The cache folder of the user, with nothing seen of the code of other tests."""
    monkeypatch.setenv(kept.FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "_asked", set())
    monkeypatch.setattr(kept, "_opened", set())
    return tmp_path / "cache"


def written(file, text):
    """Write a file as one that was there before."""
    file.write_text(text)
    past = time.time_ns() - 10**10
    os.utime(file, ns=(past, past))
    return file


def read(make, name="model.py:build"):
    with kept.keeping():
        return kept.kept((name, None), make)


def test_kept__is_what_was_lowered_without_the_users_code(place, tmp_path):
    make = Made(written(tmp_path / "sizes.json", "8"))
    first, second = read(make), read(make)
    assert make.count == 1
    assert (first.kept, second.kept) == (False, True)
    assert second == replace(MODEL, kept=True)
    assert place.stat().st_mode & 0o77 == 0


def test_kept__only_in_commands(place, tmp_path):
    make = Made(written(tmp_path / "sizes.json", "8"))
    assert kept.kept(("model.py:build", None), make) is MODEL
    assert not place.exists()


def test_kept__changed_contents_are_read_anew_and_back_again_are_kept(place, tmp_path):
    sizes = written(tmp_path / "sizes.json", "8")
    make = Made(sizes)
    read(make)
    written(sizes, "9")  # of the same size, and time to the second
    assert not read(make).kept
    written(sizes, "8")
    assert read(make).kept
    sizes.unlink()
    with pytest.raises(FileNotFoundError):
        read(make)


def test_kept__a_module_of_the_users_counts_by_contents_one_of_a_package_by_time(
    place, tmp_path, monkeypatch
):
    own = written(tmp_path / "layers.py", "a = 1")
    (tmp_path / "site-packages").mkdir()
    library = written(tmp_path / "site-packages" / "torch.py", "a = 1")
    for file in (own, library):
        module = ModuleType(f"{file.stem}_kept")
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    make = Made()
    read(make)
    own.touch()
    assert read(make).kept
    library.touch()
    assert not read(make).kept
    own.write_text("a = 2")
    assert not read(make).kept


def test_kept__variables_that_the_users_code_asks_for(place, monkeypatch):
    make = Made(code="import os; os.environ.get('LAYERS'); os.getenv('WIDTH', '8')")
    monkeypatch.setenv("LAYERS", "4")
    read(make)
    assert read(make).kept
    monkeypatch.setenv("OTHER", "1")
    assert read(make).kept
    for name, value in (("LAYERS", "5"), ("WIDTH", "9"), ("JAX_ENABLE_X64", "1")):
        monkeypatch.setenv(name, value)
        assert not read(make).kept
        assert read(make).kept
    assert type(os.environ) is not kept._Environment


@pytest.mark.parametrize("damage", [
    lambda x: x[: len(x) // 2], lambda x: x[:-3], lambda x: b"", lambda x: b"[]\n",
    lambda x: b"{}\n" + x.partition(b"\n")[2], lambda x: b"\xff" + x,
    lambda x: x.partition(b"\n")[0] + b"\n" + b"other",
    lambda x: x.replace(b'"roles": [0', b'"roles": [77'),
    lambda x: x.replace(b'"files": {', b'"files": {"a\\u0000b": 3, '),
])  # fmt: skip
def test_kept__a_broken_entry_is_made_again(place, tmp_path, damage):
    make = Made(written(tmp_path / "sizes.json", "8"))
    read(make)
    (entry,) = place.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert not read(make).kept
    assert read(make).kept


def test_kept__a_folder_that_cannot_be_is_no_error(place, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(kept.FOLDER, str(tmp_path / "file"))
    make = Made()
    assert not read(make).kept
    assert not read(make).kept
    monkeypatch.setenv(kept.FOLDER, "")
    assert not read(make).kept


def test_kept__files_that_change_meanwhile_are_not_kept(place, tmp_path):
    make = Made(tmp_path / "sizes.json", code=f"open({str(tmp_path / 'sizes.json')!r}).read()")
    future = time.time_ns() + 10**10
    (tmp_path / "sizes.json").write_text("8")
    os.utime(tmp_path / "sizes.json", ns=(future, future))
    read(make)
    assert not read(make).kept


def test_kept__a_file_that_was_looked_for_in_vain_is_read_when_it_is_there(place, tmp_path):
    path = tmp_path / "more.json"
    make = Made(code=f"try: open({str(path)!r})\nexcept OSError: pass")
    read(make)
    assert read(make).kept
    written(path, "8")
    assert not read(make).kept


def test_kept__few_versions_and_bytes(place, tmp_path, monkeypatch):
    sizes = tmp_path / "sizes.json"
    for number in range(6):
        read(Made(written(sizes, str(number))))
    assert len(list(place.iterdir())) == kept._ENTRIES
    monkeypatch.setattr(kept, "_TOTAL", 0)
    read(Made(written(sizes, "7")), "other.py:build")
    assert list(place.iterdir()) == []


def test_kept__writers_side_by_side_leave_whole_entries(place, tmp_path):
    make = Made(written(tmp_path / "sizes.json", "8"))
    sources = {"files": {}, "variables": {}}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: kept._write(place, "stem", MODEL, sources), range(40)))
    (entry,) = place.iterdir()
    assert kept._read(entry).proto == MODEL.proto
    assert json.loads(entry.read_bytes().partition(b"\n")[0])["name"] == "Net"
    assert make.count == 0
