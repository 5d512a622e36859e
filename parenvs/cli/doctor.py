"""``parenvs doctor``: what is installed, which extras are missing, whether the data are whole."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import typer

from parenvs import __version__
from parenvs.errors import one_line
from parenvs.graph.checks import UNREADABLE
from parenvs.instances import data_folder, manifest
from parenvs.view.terminal import Json, say, say_json

PURPOSES = {
    "agents": "training and evaluating agents",
    "jax": "reading JAX functions, checking plans against XLA",
    "torch": "reading PyTorch modules, calibrate, profile, run, reshard",
    "envs": "the agents of hybrid_v1 (PettingZoo)",
    "ray": "training and benchmarks on several machines",
    "docs": "building the site",
    "dev": "tests and linters",
}
_TOP = Path(__file__).parents[2]
CHECKOUT = _TOP if (_TOP / "setup.cfg").is_file() else None
"""Root of the clone that the package runs from; None if it is installed."""
_REQUIREMENT = re.compile(r"^([\w.-]+)(?:\[[\w,]+\])?\s*(?:>=\s*([\w.]+))?")
_MARKER = re.compile(r";.*python_version\s*>=\s*['\"]([\d.]+)['\"]")


@dataclass
class Diagnosis:
    """What the doctor found."""

    facts: dict[str, str] = field(default_factory=dict)
    extras: dict[str, list[str]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        """Whether nothing is broken; extras may be missing."""
        return not self.faults


def doctor(as_json: Json = False) -> None:
    """Tell what is installed, which extras are missing, and whether the data files are whole.

    Exit status 1 if something is broken. A missing extra is not: it is told, with the command
    that installs it.
    """
    report = diagnosis()
    if as_json:
        say_json({"healthy": report.healthy, **vars(report)})
    else:
        for line in lines(report):
            say(line)
    if not report.healthy:
        raise typer.Exit(1)


def diagnosis() -> Diagnosis:
    """Look at Python, packages and data files."""
    from parenvs.machine import cores, counted, processor

    report, root = Diagnosis(), CHECKOUT or Path(__file__).parents[1]
    report.facts = {
        "parenvs": f"{__version__}, {'clone' if CHECKOUT else 'installed'} at {root}",
        "python": f"{platform.python_version()}, {sys.executable}",
        "machine": f"{processor()}, {counted(cores())}, {platform.system()}",
    }
    for extra, requirements in wanted().items():
        lacking = [words for line in requirements if (words := _lack(line))]
        if extra:
            report.extras[extra] = lacking
        else:
            remedy = f"pip install {'.' if CHECKOUT else 'parenvs'}"
            report.faults += [f"{words}; {remedy}" for words in lacking]
    report.faults += _data()
    return report


def lines(report: Diagnosis) -> Iterator[str]:
    """A diagnosis as text."""
    for title, words in report.facts.items():
        yield f"{title + ':':11}{words}"
    for extra, lacking in report.extras.items():
        purpose = PURPOSES.get(extra, "")
        if lacking:
            target = f".[{extra}]" if CHECKOUT else f"parenvs[{extra}]"
            yield f"extra {extra}: missing ({', '.join(lacking)}); for {purpose}"
            yield f"    pip install '{target}'"
        else:
            yield f"extra {extra}: complete"
    for words in report.faults:
        yield f"broken: {words}"
    yield "healthy" if report.healthy else f"{len(report.faults)} broken"


def wanted() -> dict[str, list[str]]:
    """Extra -> its requirements; those of the plain installation under an empty name."""
    if CHECKOUT:
        import configparser

        setup = configparser.ConfigParser()
        setup.read(CHECKOUT / "setup.cfg", encoding="utf-8")
        texts = {"": setup["options"]["install_requires"], **setup["options.extras_require"]}
        return {extra: text.split("\n")[1:] for extra, text in texts.items()}
    extras: dict[str, list[str]] = {"": []}
    for line in metadata.requires("parenvs") or ():
        named = re.search(r"extra\s*==\s*['\"](\w+)['\"]", line)
        extras.setdefault(named[1] if named else "", []).append(line)
    return extras


def _lack(requirement: str) -> str:
    match = _REQUIREMENT.match(requirement)
    if not match:
        return ""
    name, lowest, marker = match[1], match[2], _MARKER.search(requirement)
    if marker and sys.version_info[:2] < _numbers(marker[1]):
        return f"{name} needs Python {marker[1]}"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is not installed"
    if lowest and _numbers(version) < _numbers(lowest):
        return f"{name} {version} is older than {lowest}"
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(x) for x in re.findall(r"\d+", version.partition("+")[0])[:3])


def _data() -> Iterator[str]:
    """Yield the faults of graphs, other data and shipped networks, with the remedy."""
    remedy = "install the package anew" if CHECKOUT is None else "git checkout -- datasets agents"
    folder = data_folder()
    weights = folder.parents[1] / "agents" / "learning" / "data"
    try:
        rows = [g for entry in manifest()["instances"].values() for g in entry["graphs"].values()]
        hashes = {folder / row["file"]: row["sha256"] for row in rows}
    except (OSError, ValueError, LookupError, TypeError) as error:
        yield f"{folder / 'manifest.json'}: damaged ({error}); {remedy}"
        return
    for path in sorted({*hashes, *folder.rglob("*.*"), *weights.glob("*.npz")}):
        if fault := _fault(path, hashes.get(path)):
            yield f"{path}{fault}; {remedy}"
    if not any(weights.glob("*.npz")):
        yield f"{weights} has no networks of the agent 'learned'"


def _fault(path: Path, sha256: str | None) -> str:
    """Return what is wrong with a data file, or an empty text; graphs have hashes."""
    try:
        data = path.read_bytes()
        if sha256 is not None:
            if hashlib.sha256(data).hexdigest() != sha256:
                return " is not the file that was published"
        elif path.suffix == ".json":
            json.loads(data)
        elif path.suffix == ".npz":
            with zipfile.ZipFile(path) as archive:
                if damaged := archive.testzip():
                    return f": damaged ({damaged})"
    except FileNotFoundError:
        return " is missing"
    except UNREADABLE as error:
        return f": damaged ({one_line(error)})"
    return ""
