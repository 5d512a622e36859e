"""Writes files and folders so that a kill leaves the old or the new, never a part of either.

What a killed process left under a temporary name is removed when the next one writes to the folder.
Links are followed; pipes and devices are written to.
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
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from platform import node
from typing import IO, Any

from filelock import FileLock, Timeout

from parenvs.errors import ParenvsError, shown

_HOST = re.sub(r"\W", "_", node(), flags=re.ASCII)[:30] or "host"
TEMPORARY = re.compile(
    r"\.(?P<name>.+)\.parenvs-(?P<host>\w+)-(?P<pid>\d{1,7})-[0-9a-f]{8}\.(?P<kind>new|old)", re.S
)
"""Names of what is written: who writes it, and whether it is the new or makes room for it."""
FUNCTION = re.compile(
    r"(?P<module>.+\.py|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_][\w.]*)"
)
"""Name of a function: ``FILE.py:NAME`` or ``package.module:NAME``."""
StrPath = str | os.PathLike[str]
"""A path, as functions that read or write files take it."""
_own_locks: set[tuple[Path, int]] = set()
"""Locks of this process and the threads that hold them; a thread may take one again."""


@contextmanager
def replacing(path: StrPath, mode: str = "wb") -> Iterator[IO]:
    """Open a temporary file beside ``path``; rename it over ``path`` when the block succeeds.

    File and folder are on the disk when the block ends (``fsync``). A link is followed, also one to
    a missing file; a file keeps its permissions. A pipe, a device, and what lies in ``/dev`` are
    written to when the block succeeds.

    Args:
        path: the file to write; missing parent folders are created.
        mode: ``"wb"`` or ``"w"`` (UTF-8; lines end with a newline alone).

    Raises:
        ParenvsError: the path is a folder, or a pipe that nobody reads any more.
        OSError: it cannot be written; the error names the path.
    """
    with naming(path):
        status = None
        with suppress(FileNotFoundError):
            status = Path(path).stat()
        if status is not None and stat.S_ISDIR(status.st_mode):
            raise ParenvsError(f"{os.fspath(path)}: is a folder; name a file in it")
        if os.fspath(path).startswith("/dev/") or (status and not stat.S_ISREG(status.st_mode)):
            with _write_through(path, mode) as stream:
                yield stream
            return
        target = Path(os.path.realpath(path))
        if status is not None and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    with naming(path, target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent)
    new = _temporary(target.parent, target.name[:40])
    form: Any = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        # Opened to be made anew: nobody puts a link in its place.
        with naming(path, new), new.open(mode.replace("w", "x"), **form) as stream:
            if status is not None:
                with suppress(OSError):  # some file systems have no permissions
                    new.chmod(stat.S_IMODE(status.st_mode))
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(target)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


@contextmanager
def naming(path: StrPath, *aliases: Path) -> Iterator[None]:
    """Let the errors of the system in the block that name no file, or an alias, name ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename not in (None, *aliases, *map(str, aliases)):
            raise
        raise type(error)(error.errno, error.strerror, os.fspath(path)) from None


@contextmanager
def _write_through(path: StrPath, mode: str) -> Iterator[IO]:
    """Collect what is written, and write it to a pipe or a device when the block succeeds."""
    buffer = io.BytesIO()
    stream: IO = buffer if "b" in mode else io.TextIOWrapper(buffer, "utf-8", newline="\n")
    yield stream
    stream.flush()
    try:
        with Path(path).open("ab") as out:  # /dev/stdout may lead to a file
            out.write(buffer.getvalue())
    except BrokenPipeError:
        raise ParenvsError(f"{os.fspath(path)}: nobody reads from this pipe any more") from None


def json_text(content: Any) -> str:
    """Return JSON with a value on a line, rows of tables on one each."""
    text = json.dumps(content, indent=1)
    # Line breaks stand between values alone: in texts they are escaped.
    row = re.compile(r"(?<=\n)( *\[)\n([^][{}]+)\n *\]")
    return row.sub(lambda x: x[1] + re.sub(r"\n *", " ", x[2].strip()) + "]", text) + "\n"


def write_text(path: StrPath, text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8, completely or not at all."""
    with replacing(path, "w") as stream:
        stream.write(text)


@contextmanager
def replacing_folder(path: StrPath) -> Iterator[Path]:
    """Yield an empty folder beside ``path``, which takes the place of ``path`` at the end.

    The two are exchanged in one step where the system can (Linux). Elsewhere the old folder is
    renamed first; a kill between the two renames is repaired when the next process writes here.

    Raises:
        ParenvsError: the path is no folder, or the folder in which this process works.
        OSError: it cannot be written; the error names the path.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_dir():
        raise ParenvsError(f"{os.fspath(path)}: is no folder; name another")
    # Replaced, it would leave this process in a folder without a name.
    if Path.cwd().is_relative_to(target):
        raise ParenvsError(
            f"{os.fspath(path)}: the folder in which this command works is not replaced; name "
            "another"
        )
    with naming(path, target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(target.parent)
    new = _temporary(target.parent, target.name)
    try:
        with naming(path, new):
            new.mkdir()
            yield new
        # Contents first: a rename may reach the disk before the data that it names.
        for root, _, names in os.walk(new):
            for name in names:
                with (Path(root) / name).open("rb") as stream:
                    os.fsync(stream.fileno())
            _sync_folder(Path(root))
        if target.exists() and not _exchange(new, target):
            old = _temporary(target.parent, target.name, "old")
            target.rename(old)
            try:
                new.rename(target)
            except BaseException:
                old.rename(target)
                raise
            shutil.rmtree(old, ignore_errors=True)
        elif not target.exists():
            new.rename(target)
        _sync_folder(target.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)  # the old folder by now, if all went well


@contextmanager
def locked(folder: StrPath, beside: bool = False, wait: float = 0.0) -> Iterator[None]:
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
    path = target.with_name(f".{target.name}.lock") if beside else target / ".lock"
    key = (path, threading.get_ident())
    if key in _own_locks:
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
    _own_locks.add(key)
    try:
        path.write_text(f"process {os.getpid()} on {_HOST}", encoding="utf-8")
        yield
    finally:
        _own_locks.discard(key)
        # Removed while still held: after the release it may be the lock of another process.
        path.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # folders made for the lock go, if nothing was written to them
            for parent in parents:
                parent.rmdir()


def remove_leftovers(folder: Path) -> None:
    """Remove what processes of this machine that no longer live left under temporary names.

    A folder that was renamed to make room for a new one that never came gets its name back.
    """
    for leftover in list(folder.iterdir()):
        match = TEMPORARY.fullmatch(leftover.name)
        # On a shared disk the process numbers of another machine say nothing here.
        if match is None or match["host"] != _HOST or _is_alive(int(match["pid"])):
            continue
        target = folder / match["name"]
        with suppress(OSError):  # another process may be removing it, too
            if match["kind"] == "old" and not target.exists():
                leftover.rename(target)
            elif leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink()


def _temporary(folder: Path, name: str, kind: str = "new") -> Path:
    return folder / f".{name}.parenvs-{_HOST}-{os.getpid()}-{secrets.token_hex(4)}.{kind}"


def _is_alive(pid: int) -> bool:
    try:
        # Signal 0 only asks whether the process exists.
        os.kill(pid, 0)
    except OSError as error:  # somebody else's, or gone
        return not isinstance(error, ProcessLookupError)
    return True


def _holder(lock: Path) -> str:
    text = ""
    with suppress(OSError, ValueError):
        text = lock.read_text(encoding="utf-8")
    return text if re.fullmatch(r"process \d+ on \w+", text) else "another process"


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; False if the system or the file system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    cwd, flag = -100, 2  # AT_FDCWD, RENAME_EXCHANGE (linux/fcntl.h, linux/fs.h)
    return bool(rename(cwd, os.fsencode(first), cwd, os.fsencode(second), flag) == 0)


def _sync_folder(path: Path) -> None:
    """Wait until a folder's names are on the disk, where the system can."""
    with suppress(OSError):  # some file systems sync none
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_function(instance: str) -> bool:
    """Return whether an instance names a function, as ``FUNCTION`` says."""
    return FUNCTION.fullmatch(instance) is not None


class DuplicateFieldError(ValueError):
    """A field stands twice in one object of a JSON file."""


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of JSON whose fields differ, for ``json.loads``.

    Raises:
        DuplicateFieldError: a field stands twice.
    """
    content = dict(pairs)
    if len(content) != len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise DuplicateFieldError(f"field {key[:80]!r} stands twice")
    return content


class _Constant(str):
    """NaN or Infinity where JSON has a number."""


def read_json(
    path: StrPath,
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
    where = os.fspath(path)
    try:
        is_too_large = most_bytes is not None and Path(path).stat().st_size > most_bytes
        text = "null" if is_too_large else Path(path).read_text(encoding="utf-8")
        content = json.loads(text, object_pairs_hook=no_duplicates, parse_constant=_Constant)
        found = next(_constants(content), None)
    except DuplicateFieldError as wrong:
        raise error(f"{where}: {wrong}") from None
    except RecursionError:
        raise error(f"{where}: not a JSON file (nested too deeply)") from None
    except (OSError, ValueError) as wrong:
        reason = getattr(wrong, "strerror", None) or str(wrong)
        raise error(f"{where}: not a JSON file ({reason})") from None
    if is_too_large:
        raise error(f"{where}: larger than {most_bytes:,} bytes")
    if found is not None:
        raise error(f"{where}: field {shown(found[0])}: {found[1]} is not a JSON number")
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


def read_object(path: StrPath, schema: int, most_bytes: int | None = None) -> dict[str, Any]:
    """Return the object of a JSON file whose field ``schema`` this version reads, without it.

    Raises:
        ParenvsError: see ``read_json``; or it holds no object, or one of another schema.
    """
    where, content = os.fspath(path), read_json(path, most_bytes=most_bytes)
    if not isinstance(content, dict):
        raise ParenvsError(f"{where}: expected one JSON object")
    check_schema(content, schema, where)
    return {key: value for key, value in content.items() if key != "schema"}


def check_schema(
    content: Mapping[str, Any], schema: int, where: str, error: type[ParenvsError] = ParenvsError
) -> None:
    """Raise an error unless the field ``schema`` is what this version reads."""
    version = content.get("schema")
    if type(version) is not int or version != schema:
        raise error(f"{where}: field 'schema' is {shown(version)}; this version reads {schema}")
