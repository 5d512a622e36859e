"""What killed, failing and concurrent writers leave."""

import errno
import os
import re
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from platform import node

import killed_writers
import pytest
from cases import each

from parenvs import files
from parenvs.errors import ParenvsError

HOST = re.sub(r"\W", "_", node(), flags=re.ASCII)[:30] or "host"


def dead_process():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def left_by(pid, name, kind="new", host=None):
    return f".{name}.parenvs-{host or HOST}-{pid}-0123abcd.{kind}"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "kind",
    ["plan", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("graph", "site", "swap"))],
)
def test_files__kills(kind, tmp_path):
    killed_writers.check(kind, tmp_path, 3)


@pytest.mark.slow
def test_files__kills_of_checkpoints(tmp_path):
    pytest.importorskip("sb3_contrib")
    killed_writers.check("checkpoint", tmp_path, 1)


def test_files__leftovers_of_the_dead_only(tmp_path):
    dead, me = dead_process(), os.getpid()
    stays = [left_by(me, "a"), left_by(dead, "a", host="elsewhere"), ".a.parenvs-x.new", "a.new"]
    goes = [left_by(dead, "a"), left_by(dead, "b.json")]
    for name in [*stays, *goes]:
        (tmp_path / name).touch()
    (tmp_path / left_by(dead, "folder")).mkdir()
    (tmp_path / left_by(dead, "folder") / "page").touch()
    files.write_text(tmp_path / "c", "text")
    assert {path.name for path in tmp_path.iterdir()} == {*stays, "c"}


@pytest.mark.parametrize("exchange", [True, False])
def test_files__folder_is_replaced(tmp_path, exchange, monkeypatch):
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda *_: False)
    target = tmp_path / "deep" / "folder"
    for names in (["a"], ["b", "c"]):
        with files.replacing_folder(target) as new:
            for name in names:
                (new / name).touch()
            assert new.parent == target.parent
        assert sorted(path.name for path in target.iterdir()) == names
        assert list(target.parent.iterdir()) == [target]


def test_files__folder_between_two_renames_comes_back(tmp_path):
    """Where folders cannot be exchanged, a kill may leave the old one under another name."""
    dead = dead_process()
    (tmp_path / left_by(dead, "site", "old")).mkdir()
    (tmp_path / left_by(dead, "site", "old") / "page").touch()
    (tmp_path / left_by(dead, "site")).mkdir()
    files.remove_leftovers(tmp_path)
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*")] == [
        Path("site"), Path("site/page"),
    ]  # fmt: skip
    (tmp_path / left_by(dead, "site", "old")).mkdir()
    files.remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [tmp_path / "site"]
    assert (tmp_path / "site" / "page").exists()


def test_files__everything_is_synced(tmp_path, monkeypatch):
    """Contents before the rename, names after it."""
    events, real = [], (os.fsync, Path.replace)

    def fsync(number):
        events.append(str(Path(f"/proc/self/fd/{number}").readlink()))
        real[0](number)

    def replace(path, target):
        events.append("rename")
        return real[1](path, target)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("names of open files are read from /proc")
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    files.write_text(tmp_path / "plan.json", "x")
    assert ".plan.json." in events[0] and events[1:] == ["rename", str(tmp_path)]
    events.clear()
    with files.replacing_folder(tmp_path / "site") as new:
        (new / "deep").mkdir()
        (new / "deep" / "page").touch()
    names = [event.replace(str(new), "NEW") for event in events]
    assert names == ["NEW", "NEW/deep/page", "NEW/deep", str(tmp_path)]


# What is no file.


def test_files__pipes_and_devices_are_written_to(tmp_path):
    """Neither is replaced, whoever writes."""
    pipe, read = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    files.write_text(pipe, "x\n")
    reader.join(5)
    assert read == [b"x\n"] and stat.S_ISFIFO(pipe.stat().st_mode)
    for device in ("/dev/full", "/dev/null"):
        before = Path(device).stat().st_rdev
        if device == "/dev/full":
            with pytest.raises(OSError, match=r"No space left.*'/dev/full'"):
                files.write_text(device, "x")
        else:
            files.write_text(device, "x")
        assert stat.S_ISCHR(Path(device).stat().st_mode) and Path(device).stat().st_rdev == before
    assert not list(tmp_path.glob(".*"))


def test_files__what_cannot_be_a_file_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("circle").symlink_to("circle")
    for name, words in (
        (".", r"^\.: is a folder; name a file in it"), ("folder", "folder: is a folder"),
        ("circle", "symbolic links: 'circle'"),
        ("", "is a folder"),
    ):  # fmt: skip
        with pytest.raises((ParenvsError, OSError), match=words):
            files.write_text(name, "x")
    Path("file").touch()
    for name, words in ((".", "in which this command works"), ("file", "file: is no folder")):
        with pytest.raises(ParenvsError, match=words), files.replacing_folder(name):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "file", "folder"]


@each("there", [True, False])
def test_files__links_are_followed(tmp_path, there):
    target, link = tmp_path / f"deep{there}" / "plan.json", tmp_path / f"link{there}"
    link.symlink_to(target)
    if there:
        files.write_text(target, "old")
        target.chmod(0o600)
    files.write_text(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    assert not there or stat.S_IMODE(target.stat().st_mode) == 0o600


def test_files__what_stdout_is_gets_what_is_written_there(tmp_path):
    code = "from parenvs import files; print('one'); files.write_text('/dev/stdout', 'two')"
    with (tmp_path / "out").open("wb") as out:
        subprocess.run(
            [sys.executable, "-c", code], stdout=out, cwd=killed_writers.ROOT, check=True
        )
    assert (tmp_path / "out").read_text() == "one\ntwo"


def test_files__errors_name_what_was_to_be_written(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("old")
    full = pytest.raises(OSError, match=rf"No space left on device: '{path}'")
    with full, files.replacing(path) as stream:
        stream.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


# Locks.


@pytest.mark.thorough
def test_files__lock_of_another_process(tmp_path):
    """The second writer is told who the first is; once that is killed, the lock is free."""
    with killed_writers.holding(tmp_path / "run") as pid:
        words = rf"run: process {pid} on {HOST} is writing to it; wait"
        for _ in range(2):  # a refusal does not harm the lock
            with pytest.raises(ParenvsError, match=words), files.locked(tmp_path / "run"):
                pass
    with files.locked(tmp_path / "run"), files.locked(tmp_path / "run"):
        (tmp_path / "run" / "result").touch()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["result"]


def test_files__lock_leaves_no_empty_folders(tmp_path):
    with pytest.raises(KeyError), files.locked(tmp_path / "runs" / "deep"):
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_files__lock_is_released_after_an_error(tmp_path):
    with pytest.raises(KeyError), files.locked(tmp_path / "site", beside=True):
        assert [path.name for path in tmp_path.iterdir()] == [".site.lock"]
        raise KeyError
    assert not list(tmp_path.iterdir())


def test_files__folder_comes_back_if_it_cannot_be_replaced(tmp_path, monkeypatch):
    """Where folders cannot be exchanged."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "page").touch()
    real = Path.rename

    def rename(path, target):
        if path.name.endswith(".new"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, target)

    monkeypatch.setattr(files, "_exchange", lambda *_: False)
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(PermissionError), files.replacing_folder(tmp_path / "site"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
    assert (tmp_path / "site" / "page").exists()


@pytest.mark.thorough
def test_files__lock_can_be_waited_for(tmp_path):
    started = time.monotonic()
    with killed_writers.holding(tmp_path / "run"):
        with pytest.raises(ParenvsError), files.locked(tmp_path / "run", wait=0.3):
            pass
        assert time.monotonic() - started >= 0.3
