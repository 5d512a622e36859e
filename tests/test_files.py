"""What killed, failing and concurrent writers leave."""

import errno
import os
import socket
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import killed_writers
import pytest
from cases import each

from parenvs import files
from parenvs.errors import ParenvsError


def dead_process():
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def left_by(pid, name, kind="new", host=None):
    return f".{name}.parenvs-{host or files._HOST}-{pid}-0123abcd.{kind}"


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


@pytest.mark.parametrize("kind", ["file", "folder", "swap"])
def test_files__a_writer_of_another_namespace_lives(tmp_path, kind, monkeypatch):
    """Its number says nothing here: what it is writing is locked until it has its name."""
    pytest.importorskip("fcntl")
    monkeypatch.setattr(files, "_lives", lambda pid: False)
    target, real = tmp_path / "target", files._rename

    def rename(old, new):  # others write at the least convenient time, too
        files.write_text(tmp_path / "plan.json", "x") if new != tmp_path / "plan.json" else None
        real(old, new)
        files.remove_leftovers(tmp_path) if new != tmp_path / "plan.json" else None

    monkeypatch.setattr(files, "_rename", rename)
    for text in ("old", "new"):
        if kind == "file":
            with files.replacing(target, "w") as stream:
                files.write_text(tmp_path / "other", "x")
                stream.write(text)
            assert target.read_text() == text
        else:
            if kind == "swap":
                monkeypatch.setattr(files, "_exchanged", lambda *_: False)
            with files.replacing_folder(target) as new:
                files.write_text(tmp_path / "other", "x")
                (new / "page").write_text(text)
            assert (target / "page").read_text() == text
    assert {path.name for path in tmp_path.iterdir()} == {"target", "other", "plan.json"}


def test_files__a_link_in_the_place_of_what_is_written(tmp_path, monkeypatch):
    """Who may write to the folder has nothing else written over."""
    (tmp_path / "victim").write_text("kept")
    real = files._temporary

    def planted(*given):
        new = real(*given)
        new.symlink_to(tmp_path / "victim")
        return new

    monkeypatch.setattr(files, "_temporary", planted)
    with pytest.raises(FileExistsError, match="plan"):
        files.write_text(tmp_path / "plan.json", "x")
    monkeypatch.setattr(files, "_temporary", real)
    lock = files._lock

    def swapped(new):
        new.unlink()
        new.symlink_to(tmp_path / "victim")
        return lock(new)

    monkeypatch.setattr(files, "_lock", swapped)
    files.write_text(tmp_path / "plan.json", "x")
    assert (tmp_path / "victim").read_text() == "kept"


def test_files__what_is_taken_for_a_leftover_before_it_is_locked(tmp_path, monkeypatch):
    """The writer begins again under another name, whether it was removed or is being so."""
    pytest.importorskip("fcntl")
    names, others = [], []

    def make(path):
        names.append(path)
        path.touch()
        if len(names) == 1:
            path.unlink()
        elif len(names) == 2:
            others.append(files._lock(path))

    with files._claimed("x", tmp_path, "x", make) as (new, _):
        assert len(names) == 3 and new == names[2]
        with pytest.raises(BlockingIOError):
            files._lock(new)
    os.close(others[0])
    os.close(files._lock(new))


@pytest.mark.parametrize("exchange", [True, False])
def test_files__folder_is_replaced(tmp_path, exchange, monkeypatch):
    if not exchange:
        monkeypatch.setattr(files, "_exchanged", lambda *_: False)
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


def test_files__long_names(tmp_path):
    path = tmp_path / ("ü" * 120 + ".json")
    files.write_text(path, "x")
    assert path.read_text() == "x"


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
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
    Path("folder").mkdir()
    Path("circle").symlink_to("circle")
    for name, words in (
        (".", r"^\.: is a folder; name a file in it"), ("folder", "folder: is a folder"),
        ("socket", "socket: is a socket"), ("circle", "symbolic links: 'circle'"),
        ("", "is a folder"),
    ):  # fmt: skip
        with pytest.raises((ParenvsError, OSError), match=words):
            files.write_text(name, "x")
    for name, words in ((".", "in which this command works"), ("socket", "socket: is no folder")):
        with pytest.raises(ParenvsError, match=words), files.replacing_folder(name):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["circle", "folder", "socket"]


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


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs names of open files")
def test_files__what_is_open_is_written_to(tmp_path):
    """A file in memory, one that has no name any more, and one that has."""
    gone, there = tmp_path / "gone", tmp_path / "there"
    numbers = [os.open(path, os.O_RDWR | os.O_CREAT) for path in (gone, there)]
    if hasattr(os, "memfd_create"):
        numbers.append(os.memfd_create("x"))
    gone.unlink()
    for number in numbers:
        os.write(number, b"one\n")
        for name in (f"/dev/fd/{number}", f"/proc/self/fd/{number}"):
            files.write_text(name, "two\n")
        assert os.pread(number, 99, 0) == b"one\ntwo\ntwo\n"
        os.close(number)
    number = os.open(there, os.O_RDONLY)
    with pytest.raises(OSError, match=rf"Bad file descriptor.*'/dev/fd/{number}'"):
        files.write_text(f"/dev/fd/{number}", "x")
    os.close(number)
    assert [*tmp_path.iterdir()] == [there] and there.read_text() == "one\ntwo\ntwo\n"


def test_files__errors_name_what_was_to_be_written(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("old")
    full = pytest.raises(OSError, match=rf"No space left on device: '{path}'")
    with full, files.replacing(path) as stream:
        stream.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_files__what_may_not_be_written(tmp_path, monkeypatch):
    """A file, or its folder; for the super-user nothing is so."""
    path = tmp_path / "plan.json"
    path.write_text("old")
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place) != path)
    with pytest.raises(PermissionError, match=rf"'{path}'"):
        files.write_text(path, "new")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(files._temporary(tmp_path, "x")))

    monkeypatch.setattr(files, "_opened", refuse)
    monkeypatch.setattr(files, "_temporary", lambda *_: Path("t"))
    monkeypatch.setattr(os, "access", lambda *_: True)
    with pytest.raises(PermissionError, match=rf"'{path}'"):
        files.write_text(path, "new")
    assert path.read_text() == "old"


# Locks.


@pytest.mark.thorough
def test_files__lock_of_another_process(tmp_path):
    """The second writer is told who the first is; once that is killed, the lock is free."""
    with killed_writers.holding(tmp_path / "run") as pid:
        words = rf"run: process {pid} on {files._HOST} is writing to it; wait"
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


def test_files__lock_of_a_foreign_text(tmp_path):
    """A lock's file that anybody wrote is not repeated on the terminal."""
    lock = tmp_path / ".lock"
    lock.write_text("\x1b[2J")
    assert files._holder(lock) == "another process"


def test_files__lock_is_released_after_an_error(tmp_path):
    with pytest.raises(KeyError), files.locked(tmp_path / "site", beside=True):
        assert [path.name for path in tmp_path.iterdir()] == [".site.lock"]
        raise KeyError
    assert not list(tmp_path.iterdir())


# Where a system has less.


class Windows:
    """The module ``os`` as on Windows: folders cannot be opened, signal 0 would end a process."""

    name = "nt"

    def __getattr__(self, name):
        return getattr(os, name)

    def open(self, path, *options):
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied", str(path))
        return os.open(path, *options)

    def kill(self, pid, number):
        raise AssertionError("os.kill ends the process on Windows")


def library_of_windows(name, **options):
    raise TypeError("argument of type 'NoneType' is not iterable")  # of ctypes.CDLL(None)


def open_of_windows(path, mode="r", newline=None, real=Path.open, **options):
    if newline is None and mode in ("w", "x", "a"):
        newline = "\r\n"
    return real(path, mode, newline=newline, **options)


class Kernel:
    """What Windows' kernel32 says of processes: number -> what waiting for it returns."""

    def __init__(self, processes):
        self.processes, self.error, self.open = processes, 0, []

    def OpenProcess(self, access, inherited, pid):
        assert access == 0x100000
        self.error = 0 if pid in self.processes else 5 if pid == 5 else 87
        if self.error:
            return None
        self.open.append(pid)
        return pid

    def WaitForSingleObject(self, handle, milliseconds):
        assert milliseconds == 0
        return self.processes[handle.value]

    def CloseHandle(self, handle):
        self.open.remove(handle.value)


def kernel_of(monkeypatch, processes):
    kernel = Kernel(processes)
    for name in ("OpenProcess", "WaitForSingleObject", "CloseHandle"):
        method = getattr(kernel, name)  # a function of a library has attributes
        setattr(kernel, name, lambda *values, method=method: method(*values))
    options = {"raising": False}
    monkeypatch.setattr(files.ctypes, "WinDLL", lambda name, use_last_error: kernel, **options)
    monkeypatch.setattr(files.ctypes, "get_last_error", lambda: kernel.error, **options)
    return kernel


def test_files__processes_of_windows(monkeypatch):
    """One that runs, one that ended while somebody watches it, another user's, and none."""
    kernel = kernel_of(monkeypatch, {3: 0x102, 4: 0})
    assert [files._lives_on_windows(pid) for pid in (3, 4, 5, 6)] == [True, False, True, False]
    assert not kernel.open
    monkeypatch.delattr(files.ctypes, "WinDLL")
    assert files._lives_on_windows(6)  # nobody knows


def test_files__on_windows(tmp_path, monkeypatch):
    """No renameat2, no fsync of folders or of what nobody may write, no signal 0, other lines."""
    left, alive = tmp_path / left_by(6, "a"), tmp_path / left_by(3, "a")
    left.touch()
    alive.touch()
    (tmp_path / left_by(6, "old_site", "old")).mkdir()
    kernel_of(monkeypatch, {3: 0x102})
    monkeypatch.setattr(files, "os", Windows())
    monkeypatch.setattr(files, "fcntl", None)
    monkeypatch.setattr(files.ctypes, "CDLL", library_of_windows)
    monkeypatch.setattr(Path, "open", open_of_windows)
    files.write_text(tmp_path / "plan.json", "one\n")
    files.write_text(tmp_path / "plan.json", "two\n")
    assert (tmp_path / "plan.json").read_bytes() == b"two\n"
    assert not left.exists()
    assert (tmp_path / "old_site").is_dir()
    (tmp_path / "old_site").rmdir()
    for names in (["a"], ["b", "c"]):
        with files.replacing_folder(tmp_path / "site") as new:
            (new / "deep").mkdir()
            for name in names:
                (new / "deep" / name).touch()
        assert sorted(path.name for path in (tmp_path / "site" / "deep").iterdir()) == names
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json", "site", alive.name}


def test_files__folder_comes_back_if_it_cannot_be_replaced(tmp_path, monkeypatch):
    """Windows renames no folder in which somebody has a file open."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "page").touch()
    real = Path.rename

    def rename(path, target):
        if path.name.endswith(".new"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, target)

    monkeypatch.setattr(files, "_exchanged", lambda *_: False)
    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(PermissionError), files.replacing_folder(tmp_path / "site"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["site"]
    assert (tmp_path / "site" / "page").exists()


@pytest.mark.parametrize("refusals", [2, 99])
def test_files__what_a_program_has_open(tmp_path, monkeypatch, refusals):
    """Windows replaces no open file: it is tried again, and at last there is one line."""
    path, real, tried = tmp_path / "plan.json", Path.replace, []
    path.write_text("old")

    def replace(old, new):
        tried.append(new)
        if len(tried) <= refusals:
            raise PermissionError(13, "Permission denied", str(new))
        return real(old, new)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(PermissionError):  # elsewhere that is about permissions
        files.write_text(path, "new")
    monkeypatch.setattr(files, "_IS_WINDOWS", True)
    monkeypatch.setattr(files, "_PAUSES", (0.0,) * 5)
    tried.clear()
    if refusals > 5:
        with pytest.raises(ParenvsError, match=r"plan\.json: .* a program has it open .*close it"):
            files.write_text(path, "new")
    else:
        files.write_text(path, "new")
    assert path.read_text() == ("old" if refusals > 5 else "new")
    assert [one.name for one in tmp_path.iterdir()] == ["plan.json"]
    assert len(tried) == min(refusals, 5) + 1


def test_files__sync_of_what_nobody_may_write(tmp_path, monkeypatch):
    path = tmp_path / "page"
    path.touch()
    failing = pytest.raises(OSError, match="disk")

    def fsync(number):
        raise OSError(5, "disk")

    monkeypatch.setattr(os, "fsync", fsync)
    with failing:  # a disk that fails is told
        files._sync(path)
    monkeypatch.setattr(os, "access", lambda *_: False)
    files._sync(path)


@pytest.mark.thorough
def test_files__lock_can_be_waited_for(tmp_path):
    started = time.monotonic()
    with killed_writers.holding(tmp_path / "run"):
        with pytest.raises(ParenvsError), files.locked(tmp_path / "run", wait=0.3):
            pass
        assert time.monotonic() - started >= 0.3
