"""The command lines of the modules that make shipped sets anew."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from parenvs.errors import among, shown
from parenvs.files import replacing
from parenvs.instances import data_folder


def command_line(
    program: str, about: str | None, seed: int, choose: bool = True
) -> argparse.ArgumentParser:
    """Return a parser of ``sets``, ``seed`` and ``out``."""
    first = (about or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog=f"python {program}", description=first)
    if choose:
        parser.add_argument("sets", nargs="*", metavar="SET", help="sets (default: all)")
    else:
        parser.set_defaults(sets=[])
    parser.add_argument("--seed", type=int, default=seed, help=f"default: {seed}")
    parser.add_argument("--out", type=Path, default=data_folder(), help="folder of the files")
    return parser


def read_options(
    parser: argparse.ArgumentParser, known: Collection[str], arguments: Iterable[str] | None
) -> argparse.Namespace:
    """Return the options; an unknown set or a negative seed ends the command with status 2."""
    options = parser.parse_args(None if arguments is None else list(arguments))
    options.sets = options.sets or list(known)
    unknown = [name for name in options.sets if name not in known]
    if unknown:
        parser.error(f"no set {shown(unknown[0])}{among(unknown[0], known)}")
    if options.seed < 0:
        parser.error(f"--seed is {options.seed}; give 0 or more")
    return options


def write_files(
    parser: argparse.ArgumentParser,
    known: Collection[str],
    write: Callable[[str, int, Path], tuple[Path, int]],
    arguments: Iterable[str] | None,
) -> int:
    """Make sets, a file each, as the command line says; return the exit status.

    ``write`` makes the set of a name and a seed, writes it into a folder, and returns the path and
    the number of problems.
    """
    options = read_options(parser, known, arguments)
    for name in options.sets:
        path, count = write(name, options.seed, options.out)
        print(f"{path}: {count:,} problems, {path.stat().st_size:,} bytes")
    return 0


def write_file(
    parser: argparse.ArgumentParser,
    file: str,
    known: Collection[str],
    rows: Callable[[str, int], Iterable[dict[str, Any]]],
    arguments: Iterable[str] | None,
) -> int:
    """Make all sets of one file, as the command line says; return the exit status.

    ``rows`` makes the problems of a set, objects of JSON types, from its name and the seed.
    """
    options = read_options(parser, known, arguments)
    sets = []
    for name in options.sets:
        lines = ",\n".join(json.dumps(row) for row in rows(name, options.seed))
        sets.append(f'"{name}": [\n{lines}\n]')
    path = options.out / file
    text = f'{{"schema": 1, "seed": {options.seed}, "sets": {{\n' + ",\n".join(sets) + "\n}}\n"
    with replacing(path) as stream:
        stream.write(text.encode())
    print(f"{path}: {len(sets)} sets, {path.stat().st_size:,} bytes")
    return 0
