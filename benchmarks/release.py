"""Builds sdist and wheel, checks them, and tries the wheel with every Python that is there.

    python benchmarks/release.py
    python benchmarks/release.py --extras jax envs   # besides the plain installation

Each Python from 3.10 on gets a fresh environment without the checkout. Needs the packages of the
extra ``dev`` and a package index.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from benchmarks.framework import ROOT, Column, columns, main, measurement, progress, table

DIST = ROOT / "dist"
NEWEST = 20
"""Pythons 3.10 to 3.20 are looked for."""


def run(*line: str | Path, folder: Path | None = None) -> str:
    """Run a command without this checkout on the path; its output, or its error as an exit."""
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    words = [str(word) for word in line]
    done = subprocess.run(words, cwd=folder, env=own, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def pythons() -> dict[str, Path]:
    """Version -> interpreter, of all that run: on the path, and of pyenv."""
    found: dict[str, Path] = {}
    for minor in range(10, NEWEST + 1):
        names = [shutil.which(f"python3.{minor}") or ""]
        names += sorted(map(str, Path.home().glob(f".pyenv/versions/3.{minor}.*/bin/python")))
        for name in filter(None, names):
            code = "import ensurepip, sys; print('%d.%d.%d' % sys.version_info[:3])"
            done = subprocess.run([name, "-c", code], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                found[done.stdout.strip()] = Path(name)
    newest: dict[str, str] = {}
    for version in sorted(found, key=lambda text: [int(x) for x in text.split(".")]):
        newest[version.rpartition(".")[0]] = version
    return {version: found[version] for version in newest.values()}


def build() -> tuple[Path, Path]:
    """Build both files from a clean copy of what git tracks, and return them."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "parenvs"
        for file in run("git", "ls-files", folder=ROOT).splitlines():
            if (ROOT / file).is_file():
                (copy / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, copy / file)
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, copy)
    return _files()


def _files() -> tuple[Path, Path]:
    (wheel,), (source,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return source, wheel


def checked(source: Path, wheel: Path, folder: Path) -> None:
    """Check what the files say of themselves, and that licenses and notices are in them."""
    run(sys.executable, "-m", "venv", folder / "twine")
    python = folder / "twine" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "twine")
    run(python, "-m", "twine", "check", "--strict", source, wheel)
    inside = " ".join(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(source) as archive:
        outside = " ".join(archive.getnames())
    for name in ("LICENSE", "NOTICE", "data/measured/NOTICE"):
        if name not in inside or name not in outside:
            sys.exit(f"{name} is missing from the wheel or the sdist")


def tried(python: Path, wheel: Path, extras: list[str], folder: Path) -> dict[str, Any]:
    """Install the wheel into a fresh environment and use it; what was measured."""
    run(python, "-m", "venv", folder)
    own = folder / "bin" / "python"
    size = _size(folder)
    target = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    limits = ["-c", str(ROOT / "constraints" / "tested.txt")]
    run(own, "-m", "pip", "install", "--quiet", "--no-compile", *limits, target)
    run(own, "-I", ROOT / "benchmarks" / "smoke.py", "--extras", *extras, folder=folder)
    place = run(own, "-I", "-c", "import parenvs; print(parenvs.__path__[0])").strip()
    return {
        "extras": extras,
        "own_bytes": _size(Path(place)),
        "all_bytes": _size(folder) - size,
        "numpy": run(own, "-c", "import numpy; print(numpy.__version__)").strip(),
    }


def _size(folder: Path) -> int:
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
    return sum(path.stat().st_size for path in files)


@measurement(
    title="Wheels on every Python",
    about={
        "extras": "tried besides, where they fit",
        "only": "versions, such as 3.12",
        "built": "take what lies in dist",
    },
)
def release(
    extras: tuple[str, ...] = (), only: tuple[str, ...] = (), built: bool = False
) -> dict[str, Any]:
    source, wheel = _files() if built else build()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        checked(source, wheel, Path(name))
        for version, python in pythons().items():
            if only and version.rpartition(".")[0] not in only:
                continue
            # The extra jax is empty on Python 3.10.
            with_extras = bool(extras) and not version.startswith("3.10.")
            for some in [[], list(extras)] if with_extras else [[]]:
                progress(f"Python {version} {' '.join(some)}")
                folder = Path(name) / re.sub(r"\W", "-", f"{version} {' '.join(some)}")
                rows.append({"python": version, **tried(python, wheel, some, folder)})
                shutil.rmtree(folder)
    return {"files": {path.name: path.stat().st_size for path in (source, wheel)}, "rows": rows}


@release.page
def page(data: dict[str, Any]) -> list[str]:
    told: list[Column] = [
        ("Python", "{python}"),
        ("extras", lambda row: " ".join(row["extras"]) or "none"),
        ("NumPy", "{numpy}"),
        ("parenvs (MB)", "{own_bytes:.1f/1e6}"),
        ("with all it needs (MB)", "{all_bytes:.0f/1e6}"),
    ]
    return [
        table(["file", "MB"], [[key, f"{size / 1e6:.2f}"] for key, size in data["files"].items()]),
        "The wheel in fresh environments: every environment plays an episode, a problem is solved, "
        "its plan is judged, `parenvs doctor` finds nothing broken, each extra is used.",
        columns(data["rows"], told, 3),
    ]


if __name__ == "__main__":
    main(release)
