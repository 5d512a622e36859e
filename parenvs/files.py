"""Writes files and folders so that a kill leaves the old or the new, never a part of either.

What a killed process left under a temporary name is removed when the next one writes to the folder;
what is still written is locked, which processes of other namespaces see, too. Links are followed,
and what is no file stays what it is: pipes and devices are written to.
"""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import re
import secrets
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from platform import node
from typing import IO, Any

from filelock import FileLock, Timeout

from parenvs.errors import ParenvsError, shown

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

_HOST = re.sub(r"\W", "_", node(), flags=re.ASCII)[:30] or "host"
_TEMPORARY = re.compile(
    r"\.(?P<name>.+)\.parenvs-(?P<host>\w+)-(?P<pid>\d{1,7})-[0-9a-f]{8}\.(?P<kind>new|old)", re.S
)
_LOCK = ".lock"
_IS_WINDOWS = os.name == "nt"
_PAUSES = (0.01, 0.03, 0.1, 0.3, 0.6)
"""Seconds between attempts to rename what another program has open."""
_held: set[tuple[Path, int]] = set()
"""Locks of this process and the threads that hold them; a thread may take one again."""


@contextmanager
def replacing(path: str | os.PathLike[str], mode: str = "wb") -> Iterator[IO]:
    """Open a temporary file beside ``path``; rename it over ``path`` when the block succeeds.

    File and folder are on the disk when the block ends (``fsync``). A link is followed, also one to
    a file that is not there yet; a file keeps its permissions. A pipe, a device of characters, and
    what this process has open (``/dev/fd/3``) are written to when the block succeeds.

    Args:
        path: the file to write; missing parent folders are created.
        mode: ``"wb"`` or ``"w"`` (UTF-8; lines end with a newline alone on every system).

    Raises:
        ParenvsError: the path is a folder, a socket, a disk, or a pipe that nobody reads any more.
        OSError: it cannot be written; the error names the path.
    """
    with naming(path):
        status = _status(path)
        is_file = status is None or stat.S_ISREG(status.st_mode)
        if not is_file or _descriptor(path, status) is not None:
            with _through(path, status, mode) as stream:
                yield stream
            return
        target = Path(os.path.realpath(path))
        if status is not None and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    with naming(path, target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent)
    fresh = mode.replace("w", "x")  # by one opening: nobody puts a link in its place
    with _claimed(path, target.parent, target.name[:40], lambda x: _opened(x, fresh)) as (new, out):
        try:
            with naming(path, new), out as stream:
                if status is not None:
                    with suppress(OSError):  # some file systems have no permissions
                        new.chmod(stat.S_IMODE(status.st_mode))
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            _rename(new, target)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
    _sync_folder(target.parent)


@contextmanager
def naming(path: str | os.PathLike[str], *aliases: Path) -> Iterator[None]:
    """Let the errors of the system in the block that name no file, or an alias, name ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, *aliases, *map(str, aliases)):
            raise
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from None


def _status(path: str | os.PathLike[str]) -> os.stat_result | None:
    """What the system says of what a path leads to; None if there is nothing yet."""
    try:
        return Path(path).stat()
    except FileNotFoundError:
        return None


def _descriptor(path: str | os.PathLike[str], status: os.stat_result | None) -> int | None:
    """The number under which this process has a file open to print to it, or as a path names it."""
    named = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d{1,9})", os.fspath(path))
    for number in (1, 2, *([int(named[1])] if named else [])):
        with suppress(OSError):  # it is closed
            if status is not None and os.path.samestat(os.fstat(number), status):
                return number
    return None


def _opened(path: str | os.PathLike[str] | int, mode: str) -> IO:
    """Open a file in binary or as ``replacing`` says of text."""
    encoding, newline = (None, None) if "b" in mode else ("utf-8", "\n")
    return open(path, mode, encoding=encoding, newline=newline)  # noqa: PTH123 - numbers


@contextmanager
def _through(
    path: str | os.PathLike[str], status: os.stat_result | None, mode: str
) -> Iterator[IO]:
    """Collect what is written, and write it to a pipe or a device when the block succeeds.

    Raises:
        ParenvsError: see ``replacing``.
    """
    kind = status.st_mode if status is not None else 0
    for is_one, words in (
        (stat.S_ISDIR, "is a folder; name a file in it"),
        (stat.S_ISSOCK, "is a socket, which cannot be written to as a file; name another"),
        (stat.S_ISBLK, "is a disk, which is not written over; name a file"),
    ):
        if is_one(kind):
            raise ParenvsError(f"{os.fspath(path)}: {words}")
    buffer = io.BytesIO()
    stream: IO = buffer if "b" in mode else io.TextIOWrapper(buffer, "utf-8", newline="\n")
    yield stream
    stream.flush()
    number = _descriptor(path, status)  # it is written to where this process has come to in it
    if number in (1, 2):
        (sys.stdout if number == 1 else sys.stderr).flush()
    try:
        with _opened(path if number is None else os.dup(number), "wb") as out:
            out.write(buffer.getvalue())
    except BrokenPipeError:
        raise ParenvsError(f"{os.fspath(path)}: nobody reads from this pipe any more") from None


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8, completely or not at all."""
    with replacing(path, "w") as stream:
        stream.write(text)


@contextmanager
def replacing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty folder beside ``path``, which takes the place of ``path`` at the end.

    The two are exchanged in one step where the system can (Linux). Elsewhere the old folder is
    renamed first; a kill between the two renames is repaired when the next process writes here.

    Args:
        path: the folder to replace, or to make; missing parent folders are created.

    Raises:
        ParenvsError: the path is no folder, or the folder in which this process works.
        OSError: it cannot be written; the error names the path.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_dir():
        raise ParenvsError(f"{os.fspath(path)}: is no folder; name another")
    if Path.cwd().is_relative_to(target):
        raise ParenvsError(
            f"{os.fspath(path)}: the folder in which this command works is not replaced; name "
            "another"
        )
    with naming(path, target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent)
    with _claimed(path, target.parent, target.name, Path.mkdir) as (new, _):
        try:
            with naming(path, new):
                yield new
            for root, _, names in os.walk(new):
                for name in names:
                    _sync(Path(root) / name)
                _sync_folder(Path(root))
            if not target.exists():
                _rename(new, target)
            elif not _exchanged(new, target):
                _swap(new, target)
            _sync_folder(target.parent)
        finally:
            shutil.rmtree(new, ignore_errors=True)  # the old folder by now, if all went well


@contextmanager
def locked(
    folder: str | os.PathLike[str], beside: bool = False, wait: float = 0.0
) -> Iterator[None]:
    """Hold the lock of a folder or file, so that no other process writes to it.

    The system releases the lock when its process ends, however it ends. A thread that holds the
    lock may take it again.

    Args:
        folder: the folder; it is made, or its parents if the lock is ``beside`` it.
        beside: whether the lock's file is beside the folder, which may then be replaced; always so
            for a file.
        wait: seconds to wait for another writer.

    Raises:
        ParenvsError: another process, or another thread, holds the lock.
    """
    target = Path(folder).resolve()
    path = target.with_name(f".{target.name}{_LOCK}") if beside else target / _LOCK
    key = (path, threading.get_ident())
    if key in _held:
        yield
        return
    parents = [parent for parent in path.parents if not parent.exists()]
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path, timeout=wait)
    try:
        lock.acquire()
    except Timeout:
        raise ParenvsError(
            f"{folder}: {_holder(path)} is writing to it; wait until that ends"
        ) from None
    _held.add(key)
    try:
        with suppress(OSError):  # Windows lets nobody write to a locked file
            path.write_text(f"process {os.getpid()} on {_HOST}", encoding="utf-8")
        yield
    finally:
        _held.discard(key)
        with suppress(OSError):  # on Windows it stays
            path.unlink()
        lock.release()
        with suppress(OSError):  # folders made for the lock go, if nothing was written to them
            for parent in parents:
                parent.rmdir()


def remove_leftovers(folder: Path) -> None:
    """Remove what processes of this machine that no longer live left under temporary names.

    A folder that was renamed to make room for a new one that never came gets its name back.
    """
    for left in list(folder.iterdir()):
        match = _TEMPORARY.fullmatch(left.name)
        if match is None or match["host"] != _HOST or _lives(int(match["pid"])):
            continue
        target = folder / match["name"]
        with ExitStack() as lock, suppress(OSError):  # another process may be removing it, too
            try:
                lock.callback(os.close, _lock(left))
            except (BlockingIOError, PermissionError):  # it lives in another namespace
                continue
            except OSError:  # the number alone tells
                pass
            if match["kind"] == "old" and not target.exists():
                left.rename(target)
            elif left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()


def _temporary(folder: Path, name: str, kind: str = "new") -> Path:
    """A name that is not taken and tells which process took it."""
    return folder / f".{name}.parenvs-{_HOST}-{os.getpid()}-{secrets.token_hex(4)}.{kind}"


@contextmanager
def _claimed(
    path: str | os.PathLike[str], folder: Path, name: str, make: Callable[[Path], Any]
) -> Iterator[tuple[Path, Any]]:
    """Make something under a temporary name, which is locked until the block ends.

    Gives the name, and what was returned when it was made.

    Args:
        path: what errors name.
        folder: where to make it.
        name: what it will be called.
        make: makes a folder, or a file that it returns open.
    """
    with ExitStack() as lock:
        while True:
            new = _temporary(folder, name)
            with naming(path, new):
                made = make(new)
            if made is not None:
                lock.callback(made.close)
            try:
                lock.callback(os.close, _lock(new))
            except BlockingIOError:  # another process takes it for a leftover, as it was not locked
                continue
            except OSError:  # the system or the file system has no locks, or it was removed
                pass
            if os.path.lexists(new):
                break
        yield new, made


def _lock(path: Path) -> int:
    """Lock a file or a folder, and return the number under which it is open, which is to be closed.

    Raises:
        BlockingIOError: another process has it locked.
        OSError: it cannot be locked.
    """
    if fcntl is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    access = os.O_RDONLY if path.is_dir() else os.O_RDWR  # network file systems lock no other files
    number = os.open(path, access | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(number)
        raise
    return number


def _lives(pid: int) -> bool:
    """Whether a process of this number runs."""
    if os.name == "nt":
        return _lives_on_windows(pid)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def _lives_on_windows(pid: int) -> bool:
    """Whether a process runs where signal 0 would end it: the kernel is asked for a handle of it.

    A process that ended has none, or one that is signalled as long as somebody else holds one.
    """
    synchronize, no_such_process, waiting = 0x0010_0000, 87, 0x102  # winnt.h, winerror.h, winbase.h
    try:
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
        kernel.OpenProcess.restype = ctypes.c_void_p
        handle = kernel.OpenProcess(synchronize, False, pid)
        if not handle:
            return bool(ctypes.get_last_error() != no_such_process)  # type: ignore[attr-defined]
        handle = ctypes.c_void_p(handle)
        try:
            return bool(kernel.WaitForSingleObject(handle, 0) == waiting)
        finally:
            kernel.CloseHandle(handle)
    except (AttributeError, OSError):  # a system with less
        return True


def _holder(lock: Path) -> str:
    """Who holds a lock, as far as its file tells."""
    try:
        text = lock.read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    return text if re.fullmatch(r"process \d+ on \w+", text) else "another process"


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False if the system or the file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE (linux/fcntl.h, linux/fs.h)
    if rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
        return False
    raise OSError(number, os.strerror(number), str(other))


def _rename(old: Path, new: Path) -> None:
    """Rename a file or folder, over a file if there is one.

    Windows refuses that while a program has one of them open, which is often soon over.

    Raises:
        ParenvsError: it is not.
    """
    for seconds in (*_PAUSES, None):
        try:
            if old.is_dir():
                old.rename(new)
            else:
                old.replace(new)
            return
        except PermissionError as error:
            if not _IS_WINDOWS:
                raise
            if seconds is None:
                raise ParenvsError(
                    f"{new}: cannot be replaced, as a program has it open ({error.strerror}); "
                    "close it and try again"
                ) from None
            time.sleep(seconds)


def _swap(new: Path, target: Path) -> None:
    """Put ``new`` in the place of ``target`` by two renames; an error undoes the first."""
    old = _temporary(target.parent, target.name, "old")
    with ExitStack() as lock:
        with suppress(OSError):
            lock.callback(os.close, _lock(target))
        _rename(target, old)
        try:
            _rename(new, target)
        except BaseException:
            _rename(old, target)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    """Wait until a file is on the disk; the system may be unable to where nobody may write it."""
    writable = os.access(path, os.W_OK)
    with path.open("rb+" if writable else "rb") as stream:
        try:
            os.fsync(stream.fileno())
        except OSError:  # Windows syncs only what is open for writing
            if writable:
                raise


def _sync_folder(path: Path) -> None:
    """Wait until a folder's names are on the disk, where the system can."""
    with suppress(OSError):  # Windows opens no folder, and some file systems sync none
        number = os.open(path, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


class DuplicateFieldError(ValueError):
    """A field stands twice in one object of a JSON file."""


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of JSON whose fields differ, for ``json.loads``.

    Raises:
        DuplicateFieldError: a field stands twice.
    """
    content = dict(pairs)
    if len(content) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DuplicateFieldError(f"field {key[:80]!r} stands twice")
            seen.add(key)
    return content


class _Constant(str):
    """NaN or Infinity where JSON has a number."""


def read_json(
    path: str | os.PathLike[str],
    error: type[ParenvsError] = ParenvsError,
    most_bytes: int | None = None,
) -> Any:
    """Read a JSON file none of whose objects has a field twice, and whose numbers are finite.

    Args:
        path: the file.
        error: class of the errors.
        most_bytes: limit of the file's size.

    Raises:
        ParenvsError: the file is missing, larger, no JSON, or not as said above.
    """
    where, large, constant = os.fspath(path), False, None
    try:
        large = most_bytes is not None and Path(path).stat().st_size > most_bytes
        content = (
            None
            if large
            else json.loads(
                Path(path).read_text(encoding="utf-8"),
                object_pairs_hook=no_duplicates,
                parse_constant=_Constant,
            )
        )
        constant = next(_constants(content), None)
    except DuplicateFieldError as wrong:
        raise error(f"{where}: {wrong}") from None
    except RecursionError:
        raise error(f"{where}: not a JSON file (nested too deeply)") from None
    except (OSError, ValueError) as wrong:
        reason = getattr(wrong, "strerror", None) or str(wrong)
        raise error(f"{where}: not a JSON file ({reason})") from None
    if large:
        raise error(f"{where}: larger than {most_bytes:,} bytes")
    if constant is not None:
        raise error(f"{where}: field {shown(constant[0])}: {constant[1]} is not a JSON number")
    return content


def _constants(content: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path of the field and the text of each NaN and Infinity."""
    if isinstance(content, _Constant):
        yield path, str(content)
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from _constants(value, f"{path}.{key}".lstrip("."))
    elif isinstance(content, list):
        for position, value in enumerate(content):
            yield from _constants(value, f"{path}[{position}]")


def read_object(
    path: str | os.PathLike[str],
    schema: int,
    error: type[ParenvsError] = ParenvsError,
    most_bytes: int | None = None,
) -> dict[str, Any]:
    """Return the object of a JSON file whose field ``schema`` this version reads, without it.

    Raises:
        ParenvsError: see ``read_json``; or it holds no object, or one of another schema.
    """
    where, content = os.fspath(path), read_json(path, error, most_bytes)
    if not isinstance(content, dict):
        raise error(f"{where}: expected one JSON object")
    check_schema(content, schema, where, error)
    return {key: value for key, value in content.items() if key != "schema"}


def check_schema(
    content: Mapping[str, Any], schema: int, where: str, error: type[ParenvsError] = ParenvsError
) -> None:
    """Raise an error unless the field ``schema`` is what this version reads."""
    found = content.get("schema")
    if type(found) is not int or found != schema:
        raise error(f"{where}: field 'schema' is {shown(found)}; this version reads {schema}")
