"""Models that were lowered, kept in the user's cache folder by what they came from.

An entry holds as long as nothing has changed that was read to make it: the user's files, imported
or opened, by their contents; those of Python and of packages, this one included, by size and time
of their last change; variables of the environment that the user's code asked for by their values.
One that is broken or cannot be written is as one that is not there. What the user's code asks of
anything else (the clock, the network) is not seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parenvs import __version__
from parenvs.errors import ParenvsError
from parenvs.files import replacing

if TYPE_CHECKING:
    from parenvs.graph.pytorch.read import Lowered

FOLDER = "PARENVS_CACHE"
"""Variable of the environment that names the folder; empty: nothing is kept."""
_FORM = 1
"""Version of what entries hold."""
_SUITE, _PYTHON = str(Path(__file__).parents[1]), str(Path(os.__file__).parent)
_LIBRARIES = ("site-packages", "dist-packages", "importlib", "<frozen")
_SETTINGS = ("JAX_", "XLA_", "TORCH", "PYTORCH")
"""Beginnings of variables of the environment that set what lowers a model."""
_ENVIRONMENT = ("os", "collections.abc")
"""Modules whose functions read the environment for those that call them."""
_SYSTEM = ("/proc/", "/sys/", "/dev/")
_LARGE = 1 << 26
"""Bytes from which a file of the user's counts by size and time, too: it holds weights."""
_ENTRIES = 4
"""Kept for one name: a model goes back and forth between versions."""
_TOTAL = 1 << 30
"""Bytes that all entries may have."""

_folder: Path | None = None
_asked: set[str] = set()
_opened: set[str] = set()
_watches = False


def folder() -> Path | None:
    """Return the folder of the user's cache; None if there is none."""
    given = os.environ.get(FOLDER)
    if given is not None:
        return Path(given) if given else None
    with suppress(RuntimeError):  # nobody's home
        home = Path.home()
        if sys.platform == "win32":
            place = os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"
        elif sys.platform == "darwin":
            place = home / "Library" / "Caches"
        else:
            place = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
        return Path(place) / "parenvs" / "models"
    return None


@contextmanager
def keeping() -> Iterator[None]:
    """Let models that are lowered in the block be kept in the user's folder."""
    global _folder  # of a command
    before, _folder = _folder, folder()
    try:
        yield
    finally:
        _folder = before


def is_users(file: str) -> bool:
    """Return whether a file is the user's: of no library, and not of this suite."""
    return not (file.startswith((_SUITE, _PYTHON)) or any(part in file for part in _LIBRARIES))


def kept(name: Iterable[Any], make: Callable[[], Lowered]) -> Lowered:
    """Return the model of a name as it was kept, or make and keep it.

    Args:
        name: what names the model, as JSON types.
        make: lowers it.
    """
    if _folder is None:
        return make()
    settings = sorted(item for item in os.environ.items() if item[0].startswith(_SETTINGS))
    said = [_FORM, __version__, sys.version, sys.path, settings, *name]
    stem = _digest(json.dumps(said).encode())
    for entry in _entries(_folder, f"{stem}-*"):
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError, zlib.error):
            found = _read(entry)
            if found is not None:
                os.utime(entry)
                return found
    begin = time.time_ns()
    with _watching():
        made = make()
    sources = _sources(begin)
    if sources is not None:
        with suppress(OSError, ParenvsError):  # a full disk, no folder of one's own
            _write(_folder, stem, made, sources)
    return made


def _read(entry: Path) -> Lowered | None:
    """Return what an entry holds, or None if something changed since.

    Raises:
        ValueError: it is broken; so say the other errors that ``kept`` knows.
    """
    from parenvs.graph.graph import Role
    from parenvs.graph.pytorch.read import Lowered

    with entry.open("rb") as stream:
        head = json.loads(stream.readline())
        if any(_mark(path, isinstance(x, str)) != x for path, x in head["files"].items()):
            return None
        if _variables(head["variables"]) != head["variables"]:
            return None
        packed = stream.read()
    if _digest(packed) != head["digest"]:
        raise ValueError("another content")
    names = (str(head["name"]), tuple(Role(x) for x in head["roles"]))
    told = (tuple(map(str, head["notes"])), tuple(map(str, head["results"])))
    return Lowered(zlib.decompress(packed), *names, *told, kept=True)


def _write(place: Path, stem: str, made: Lowered, sources: dict[str, Any]) -> None:
    """Write an entry, and remove those that are too many.

    Raises:
        OSError: it cannot be written.
    """
    packed = zlib.compress(made.proto, 1)
    head = json.dumps({
        **sources, "name": made.name, "roles": list(map(int, made.roles)),
        "notes": made.notes, "results": made.results, "digest": _digest(packed),
    }).encode()  # fmt: skip
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replacing(place / f"{stem}-{_digest(head)[:16]}.model") as stream:
        stream.write(head + b"\n" + packed)
    of_name = _entries(place, f"{stem}-*")[_ENTRIES:]
    room = _TOTAL
    for entry in _entries(place, "*.model"):
        with suppress(OSError):
            room -= entry.stat().st_size
            if room < 0 or entry in of_name:
                entry.unlink()


def _entries(place: Path, pattern: str) -> list[Path]:
    """Return the entries of a pattern, the last used first."""
    found = []
    with suppress(OSError):
        for entry in place.glob(pattern):
            with suppress(OSError):
                found.append((-entry.stat().st_mtime_ns, entry))
    return [entry for _, entry in sorted(found)]


@contextmanager
def _watching() -> Iterator[None]:
    """Note which files are opened in the block, and which variables the user's code asks for."""
    global _watches  # audit hooks stay
    if not _watches:
        sys.addaudithook(_audit)
    _watches = True
    plain = type(os.environ)
    os.environ.__class__ = _Environment
    try:
        yield
    finally:
        os.environ.__class__ = plain


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Note a file that is opened to be read."""
    if event != "open" or type(os.environ) is not _Environment:
        return
    path, mode, flags = arguments
    writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
    if isinstance(path, str) and not writes and (mode is None or "r" in mode):
        _opened.add(os.path.abspath(path))  # noqa: PTH100  # no path: this is each opening


class _Environment(os._Environ):
    """The environment's variables, which note what the user's code asks for."""

    def __getitem__(self, key: str) -> str:
        """Return a value."""
        frame: Any = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") in _ENVIRONMENT:
            frame = frame.f_back
        if frame is not None and is_users(frame.f_code.co_filename):
            _asked.add(key)
        value: str = super().__getitem__(key)
        return value


def _sources(begin: int) -> dict[str, Any] | None:
    """Return marks of all that a model came from; None if the user's files changed meanwhile.

    Args:
        begin: when it began to be read, in nanoseconds.
    """
    modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    imported = {x for x in modules if isinstance(x, str) and Path(x).is_absolute()}
    opened = {x for x in _opened if is_users(x) and not x.startswith(_SYSTEM)}
    files = {}
    for path in sorted(imported | {x for x in opened if not x.endswith(".pyc")}):
        whole = is_users(path)
        with suppress(OSError, ValueError):
            if whole and Path(path).stat().st_mtime_ns >= begin:
                return None
        files[path] = _mark(path, whole)
    return {"files": files, "variables": _variables(_asked)}


def _mark(path: str, whole: bool) -> str | list[int] | None:
    """Return what tells a file from one that was changed; None if there is no such file.

    Args:
        path: of the file.
        whole: whether its contents count, or else size and time.
    """
    try:
        status = os.stat(path)  # noqa: PTH116  # of thousands of files
        if not stat.S_ISREG(status.st_mode):
            return None
        if whole and status.st_size < _LARGE:
            return _digest(Path(path).read_bytes())
    except (OSError, ValueError):
        return None
    return [status.st_size, status.st_mtime_ns]


def _variables(names: Iterable[str]) -> dict[str, str | None]:
    """Return digests of the values of the environment's variables, None of those not set."""
    values = {name: os.environ.get(name) for name in sorted(names)}
    return {name: value and _digest(value.encode()) for name, value in values.items()}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
