"""Cache of lowered models in the user's folder, keyed by contents and versions.

An entry holds as long as the user's modules that were imported to make it have the same contents,
and the installed packages the same versions. A broken entry, or one that cannot be written, counts
as missing. Files that the user's code opens, and variables that it asks for, are not seen.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from parenvs import __version__
from parenvs.errors import ParenvsError
from parenvs.files import replacing
from parenvs.graph.checks import UNREADABLE

if TYPE_CHECKING:
    from parenvs.graph.sources import Lowered

FOLDER = "PARENVS_CACHE"
"""Variable of the environment that names the folder; empty: no cache."""
_FORM = 4
"""Version of what entries hold."""
_SUITE, _PYTHON = str(Path(__file__).parents[1]), str(Path(os.__file__).parent)
_LIBRARIES = ("site-packages", "dist-packages", "importlib", "<frozen")
_SETTINGS = ("JAX_", "XLA_", "TORCH", "PYTORCH")
"""Prefixes of the environment's variables that change what lowering gives."""
_TOTAL = 1 << 30
"""Bytes that all entries may have."""

_folder: Path | None = None


def folder() -> Path | None:
    """Return the folder of the user's cache; None if there is none."""
    given = os.environ.get(FOLDER)
    if given is not None:
        return Path(given) if given else None
    with suppress(RuntimeError):  # the user has no home directory
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base) / "parenvs" / "models"
    return None


@contextmanager
def enabled() -> Iterator[None]:
    """Cache models that are lowered in the block in the user's folder."""
    global _folder  # of a command
    before, _folder = _folder, folder()
    try:
        yield
    finally:
        _folder = before


def is_users(file: str) -> bool:
    """Return whether a file is the user's: of no library, and not of this suite."""
    return not (file.startswith((_SUITE, _PYTHON)) or any(part in file for part in _LIBRARIES))


def load_or_make(key: Iterable[Any], make: Callable[[], Lowered]) -> Lowered:
    """Return the model of a key (JSON types) from the cache, or make and store it."""
    if _folder is None:
        return make()
    settings = sorted(item for item in os.environ.items() if item[0].startswith(_SETTINGS))
    packages = sorted((package.name, package.version) for package in metadata.distributions())
    versions = [_FORM, __version__, sys.version, sys.path, packages, settings, *key]
    # The stem is what is known before the user's code runs; contents are compared in the entry.
    stem = _digest(json.dumps(versions).encode())
    for entry in _entries(_folder, f"{stem}-*"):
        with suppress(*UNREADABLE):
            model = _read(entry)
            if model is not None:
                os.utime(entry)
                return model
    begin = time.time_ns()
    model = make()
    files = _sources()
    with suppress(OSError, ParenvsError):  # a full disk, a folder of another user
        # A file that was changed while the model was made may not be what it was made of.
        if all(Path(file).stat().st_mtime_ns < begin for file in files):
            _write(_folder, stem, model, files)
    return model


def _sources() -> dict[str, str]:
    """Return digests of the user's imported modules, by file."""
    modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    files = sorted({x for x in modules if isinstance(x, str) and Path(x).is_absolute()})
    digests = {}
    for file in filter(is_users, files):
        with suppress(OSError, ValueError):
            digests[file] = _digest(Path(file).read_bytes())
    return digests


def _read(entry: Path) -> Lowered | None:
    """Return the model of an entry, None if a source file changed since; raises if it is broken."""
    from parenvs.graph.graph import Role
    from parenvs.graph.sources import Lowered

    with entry.open("rb") as stream:
        header = json.loads(stream.readline())
        if any(_digest(Path(file).read_bytes()) != old for file, old in header["files"].items()):
            return None
        compressed = stream.read()
    if _digest(compressed) != header["digest"]:
        raise ValueError("another content")
    names = (str(header["name"]), tuple(Role(x) for x in header["roles"]))
    texts = (tuple(map(str, header["notes"])), tuple(map(str, header["results"])))
    buffers = None if header["buffers"] is None else tuple(map(str, header["buffers"]))
    traits = {str(name): str(words) for name, words in header["traits"].items()}
    return Lowered(zlib.decompress(compressed), *names, *texts, buffers, traits, kept=True)


def _write(directory: Path, stem: str, model: Lowered, files: dict[str, str]) -> None:
    """Write an entry, and remove the oldest beyond the limit."""
    compressed = zlib.compress(model.proto, 1)
    header = json.dumps({
        "files": files, "name": model.name, "roles": list(map(int, model.roles)),
        "notes": model.notes, "results": model.results, "buffers": model.buffers,
        "traits": model.traits, "digest": _digest(compressed),
    }).encode()  # fmt: skip
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with replacing(directory / f"{stem}-{_digest(header)[:16]}.model") as stream:
        stream.write(header + b"\n" + compressed)
    # Least recently used entries are evicted (LRU).
    remaining = _TOTAL
    for entry in _entries(directory, "*.model"):
        with suppress(OSError):
            remaining -= entry.stat().st_size
            if remaining < 0:
                entry.unlink()


def _entries(directory: Path, pattern: str) -> list[Path]:
    """Return the entries of a pattern, the last used first."""
    result = []
    with suppress(OSError):
        for entry in directory.glob(pattern):
            with suppress(OSError):
                result.append((-entry.stat().st_mtime_ns, entry))
    return [entry for _, entry in sorted(result)]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
