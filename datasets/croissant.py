"""Describes what ships: Croissant metadata with responsible-AI fields, and a datasheet.

    python -m parenvs.datasets.croissant            # writes both files
    python -m parenvs.datasets.croissant --check    # status 2 if one is another one than committed

``data/croissant.json`` follows Croissant 1.0 (mlcommons.org/croissant/1.0) and its vocabulary for
responsible AI 1.0: every file with its hash, every model and set in records. ``DATASHEET.md`` says
the same to people. Both are made of the texts below, of the files, and of the registry of sets.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import parenvs
from parenvs.core.registry import TASKS
from parenvs.core.sets import set_of
from parenvs.files import write_text
from parenvs.markdown import table
from parenvs.shipped import data_folder, manifest

COMMAND = "python -m parenvs.datasets.croissant"
NAME, DESCRIPTION = (
    "parenvs-data",
    "Problems of planning the parallel training of neural networks: graphs of training steps, sets "
    "of drawn planning problems with certified references, and published measurements.",
)
URL = "https://example.org/parenvs"
"""A placeholder, as in ``SECURITY.md``, until the repository has a public home."""
OWN, MIT = "Apache-2.0", "MIT"
FACTS = "figures of publications, as facts"
RELEASED = "2026-11-22"
"""Day of the version, as in ``CITATION.cff``."""


class Licence(NamedTuple):
    """The licence of some files.

    Attributes:
        files: pattern of their paths below the folder of data.
        licence: its identifier (SPDX), or in words.
        source: whose they are, or which command makes them.
    """

    files: str
    licence: str
    source: str


LICENCES = (
    Licence("measured/gpt-1.5b.json", MIT, "JF-D/Parcae at efedee7"),
    Licence("measured/bert-large.json", MIT, "JF-D/Parcae at efedee7"),
    Licence("measured/aws-p3-spot.csv", MIT, "JF-D/Parcae at efedee7"),
    Licence("measured/gpt-1.5b-parcae-decisions.csv", MIT, "JF-D/Parcae at efedee7"),
    Licence("measured/aws-g4dn-spot.csv", MIT, "uclasystem/bamboo at 8080929"),
    Licence("measured/published.json", FACTS, "each row names its source"),
    Licence("measured/rows-2026.json", FACTS, "each row names its document and commit"),
    Licence("measured/NOTICE", OWN, "this project"),
    Licence("shapes.json", OWN, "this project; dimensions of models, each with its source"),
    Licence("*-references.json", OWN, "this project: `parenvs.agents.NAME.references`"),
    Licence("plan-optima.json", OWN, "this project: `parenvs.agents.pipeline.references optima`"),
    Licence("banks/*.npz", OWN, "this project: `parenvs.datasets.banks`"),
    Licence("manifest.json", OWN, "this project: `parenvs.datasets.build`"),
    Licence("plan-*.npz", OWN, "this project: `parenvs.datasets.pipeline.problems`"),
    Licence("*.npz", OWN, "this project: `parenvs.datasets.build`, of code in `datasets/models`"),
    Licence("*.json", OWN, "this project: modules of `parenvs.datasets`"),
)
"""What holds for a file is the first row whose pattern it matches."""
RESPONSIBLE: Mapping[str, tuple[str, str]] = {
    "rai:dataUseCases": (
        "Uses",
        "Training and comparing planners and reinforcement-learning agents that choose how a "
        "network is trained on many devices. Names that end in -train and -validation are for "
        "training and for choosing settings, those in -test, -outside and -large for figures that "
        "are reported once. No file is for training language or vision models, and none says how "
        "good a model is.",
    ),
    "rai:dataCollection": (
        "Composition and collection",
        "Graphs are training steps and forward passes of published architectures, written in this "
        "project's own code and lowered by JAX without allocating weights. Problems of sets are "
        "drawn by committed generators from fixed seeds, within the ranges of real chains with a "
        "factor of three on either side. References are the best plans that committed searches "
        "found, with certified bounds. Measurements are copied from publications and their "
        "repositories; nothing in them was measured by this project.",
    ),
    "rai:dataCollectionType": (
        "Kinds of data",
        "Software collection; synthetic data; secondary analysis of published figures.",
    ),
    "rai:dataCollectionRawData": (
        "Raw data",
        "The code of the models and the seeds of the generators: every drawn file can be made "
        "again, and tests hold that it is the same. Two traces of nodes and the tables of figures "
        "are kept as published, with the commit they are from.",
    ),
    "rai:dataPreprocessingProtocol": (
        "Preprocessing",
        "Graphs keep shapes, types, operators and edges of the lowered program and no constant. "
        "A drawn problem without a legal plan is drawn again. Figures were put into JSON and CSV "
        "without a change; guesses about what a table leaves out stand in the field note.",
    ),
    "rai:dataAnnotationProtocol": (
        "Labels",
        "No person labelled anything. References and their bounds are computed; each row says "
        "whether it is proven optimal, within what space of plans, and which command made it.",
    ),
    "rai:dataBiases": (
        "Biases",
        "Architectures are those of well-known publications of 2014 to 2024, most of them "
        "transformers; clusters are servers of NVIDIA V100, A100 and H100. The published figures "
        "are those that their authors chose to publish, which are rarely failures. The two traces "
        "are of two clusters on two days.",
    ),
    "rai:dataLimitations": (
        "Limitations",
        "Training steps leave out dropout, clipping of gradients and some losses. Costs are those "
        "of a cost model, whose errors against measured steps the documentation tabulates. Drawn "
        "chains are shaped after real ones and are not real ones. References are optimal only "
        "where a row says so. Models of the test split are public, so that code which was trained "
        "on the web may know them.",
    ),
    "rai:personalSensitiveInformation": (
        "Persons",
        "No file holds data about persons. Nodes of the traces are numbers without an owner.",
    ),
    "rai:dataSocialImpact": (
        "Impact",
        "Better plans train the same model with less energy and fewer devices, which may as well "
        "be spent on larger models. Nothing in the data lets a reader identify a person or "
        "attack a system.",
    ),
    "rai:dataReleaseMaintenancePlan": (
        "Hosting and maintenance",
        "The files are part of the repository and of every release of the package, with which "
        "they are versioned; there is no other host, and so far no DOI. A change of a file needs "
        "a new fingerprint and, for the leaderboard, a new version of its list, and the changelog "
        "names it. Old versions stay in the repository's history. Errors are reported as issues "
        "there; the maintainers answer as they can, without a promise of time. Should the "
        "project end, the files stay usable: they are JSON, CSV and NumPy archives without "
        "pickles, and every one can be made again from the code of its release.",
    ),
}
"""Field of the responsible-AI vocabulary -> heading and text of the datasheet."""
_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
"""The context that Croissant 1.0 recommends, word for word."""
_FORMATS = {".json": "application/json", ".csv": "text/csv", ".npz": "application/x-npz"}
_TYPES = {str: "sc:Text", int: "sc:Integer"}
METADATA, SHEET = "croissant.json", "DATASHEET.md"


def licence_of(path: str) -> Licence:
    """Return the licence of a file by its path below the folder of data.

    Raises:
        LookupError: no row of ``LICENCES`` is about it.
    """
    return next(row for row in LICENCES if fnmatch(path, row.files))


def files() -> list[str]:
    """Return the paths of all shipped files below the folder of data, sorted."""
    folder = data_folder()
    paths = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in paths if path != METADATA)


def sets() -> list[dict[str, Any]]:
    """Return the shipped sets: name, task, environment, number of problems, what it is for."""
    found = []
    for task in TASKS.values():
        for name in task.sets:
            known = set_of(name)
            split = {"train": "training", "validation": "validation"}.get(name.split("-")[-1])
            found.append(
                {
                    "name": name,
                    "task": task.name,
                    "environment": known.env_id,
                    "problems": len(known.problems),
                    "split": split or "test",
                }
            )
    return found


def models() -> list[dict[str, Any]]:
    """Return the shipped graphs: instance, family, source, batch, parameters of the model."""
    return [
        {
            "name": name,
            "family": entry["family"],
            "source": entry["source"],
            "batch_size": entry["batch_size"],
            "parameters": entry["graphs"]["train"]["parameters"],
            "fingerprint": entry["graphs"]["train"]["fingerprint"],
        }
        for name, entry in manifest()["instances"].items()
    ]


def metadata() -> dict[str, Any]:
    """Return the Croissant metadata, JSON-LD."""
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": NAME,
        "description": DESCRIPTION,
        "conformsTo": [
            "http://mlcommons.org/croissant/1.0",
            "http://mlcommons.org/croissant/RAI/1.0",
        ],
        "license": "https://spdx.org/licenses/Apache-2.0.html",
        "url": URL,
        "version": parenvs.__version__,
        "datePublished": RELEASED,
        "creator": {"@type": "sc:Organization", "name": "the parenvs authors"},
        "keywords": ["reinforcement learning", "pipeline parallelism", "auto-parallelism", "HLO"],
        "citeAs": f"The parenvs authors. parenvs, version {parenvs.__version__}.",
        "isLiveDataset": False,
        **{key: text for key, (_, text) in RESPONSIBLE.items()},
        "distribution": [_file(path) for path in files()],
        "recordSet": [_records("sets", sets()), _records("models", models())],
    }


def _file(path: str) -> dict[str, Any]:
    """Return the description of a file."""
    content, licence = (data_folder() / path).read_bytes(), licence_of(path)
    return {
        "@type": "cr:FileObject",
        "@id": path,
        "name": path,
        "description": f"Licence: {licence.licence}. Source: {licence.source.replace('`', '')}.",
        "contentUrl": path,
        "contentSize": f"{len(content)} B",
        "encodingFormat": _FORMATS.get(Path(path).suffix, "text/plain"),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _records(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a set of records that stand in the metadata themselves."""
    return {
        "@type": "cr:RecordSet",
        "@id": name,
        "name": name,
        "key": {"@id": f"{name}/name"},
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{name}/{field}",
                "name": field,
                "dataType": _TYPES[type(value)],
            }
            for field, value in rows[0].items()
        ],
        "data": [{f"{name}/{field}": value for field, value in row.items()} for row in rows],
    }


def datasheet() -> str:
    """Return the datasheet, Markdown."""
    by_row: dict[Licence, list[str]] = {}
    for path in files():
        by_row.setdefault(licence_of(path), []).append(path)
    licences = [
        [f"`{row.files}`", len(paths), row.licence, row.source]
        for row, paths in sorted(by_row.items())
    ]
    parts = [
        "# Datasheet of the data that ships",
        f"`{COMMAND}`",
        f"{DESCRIPTION} The files are in `datasets/data`, in the package `parenvs.datasets`; "
        f"`datasets/data/{METADATA}` says the same to machines (Croissant 1.0 with the fields for "
        "responsible AI), with the hash of every file.",
    ]
    for heading, text in RESPONSIBLE.values():
        parts += [f"## {heading}", text]
    parts += [
        "## Licences by file",
        "A file is of the first row whose pattern it matches. `datasets/data/measured/NOTICE` has "
        "the text of the MIT licence.",
        table(["files", "number", "licence", "whose, or made by"], licences, left=(0, 2, 3)),
        "## Sets",
        table([*sets()[0]], [[*map(_cell, row.values())] for row in sets()], left=(0, 1, 2, 4)),
        "## Models",
        table(
            ["instance", "family", "source", "batch", "parameters"],
            [[*map(_cell, row.values())][:5] for row in models()],
            left=3,
        ),
    ]
    return "\n\n".join(parts) + "\n"


def _cell(value: Any) -> str:
    """Return what a table shows of a value."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def made() -> dict[Path, str]:
    """Return the files that the command writes -> their texts."""
    text = json.dumps(metadata(), indent=1, ensure_ascii=False) + "\n"
    return {data_folder() / METADATA: text, data_folder().parent / SHEET: datasheet()}


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command line of this module, and return the exit status."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=str(__doc__).splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    options = parser.parse_args(None if arguments is None else list(arguments))
    other = [
        path
        for path, text in made().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in other:
        if options.check:
            print(f"{COMMAND}: {path} is another one; run the command", file=sys.stderr)
        else:
            write_text(path, made()[path])
    return 2 if options.check and other else 0


if __name__ == "__main__":
    sys.exit(main())
