"""``Bank``: thousands of numbered problems as compact arrays, a look-up away."""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from parenvs.errors import ParenvsError, among, one_line, shown
from parenvs.files import replacing
from parenvs.graph.checks import UNREADABLE, read_arrays
from parenvs.instances import data_folder

FOLDER = "banks"
"""Folder of the files, in that of the data."""
_ENDS = "ends of "
"""Arrays of such names say where each problem's part ends in one that holds them all in a row."""
LARGEST = 2**32
"""Bytes that a bank may unpack to."""


class _Row(dict[str, Any]):
    """The arrays of a problem, whose bank's file has lost those that are not there."""

    def __missing__(self, name: str) -> Any:
        raise ParenvsError(f"{data_folder() / FOLDER}: no array {shown(name)}; see parenvs doctor")


class Bank:
    """Numbered problems, of each of which a row of arrays says all; the file ships.

    Args:
        row: number -> arrays of a problem, by name; all problems have the same names, and shapes
            that differ along the first axis at most.
    """

    def __init__(
        self, name: str, count: int, row: Callable[[int], Mapping[str, np.ndarray]]
    ) -> None:
        self.name, self.count, self.row = name, count, row

    def __len__(self) -> int:
        """Number of problems."""
        return self.count

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.name}.npz"

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays by name, one row for each problem.

        Raises:
            ParenvsError: the file is damaged, or of another number of problems.
        """
        path = data_folder() / FOLDER / self.file
        try:
            arrays = read_arrays(path, LARGEST)
        except UNREADABLE as error:
            raise ParenvsError(f"{path}: damaged ({one_line(error)}); see parenvs doctor") from None
        lengths = {
            arrays.get(_ENDS + name, values).shape[:1]
            for name, values in arrays.items()
            if not name.startswith(_ENDS)
        }
        if lengths != {(self.count,)}:
            raise ParenvsError(f"{path}: expected {self.count} problems; see parenvs doctor")
        return arrays

    def write(self, path: Path) -> None:
        """Make all problems and write them, whole or not at all."""
        words = f"making {self.count} problems of {self.name}"
        hidden = not sys.stderr.isatty()
        rows = [self.row(i) for i in track(range(self.count), words, disable=hidden)]
        arrays: dict[str, Any] = {}
        for name in rows[0]:
            each = [row[name] for row in rows]
            if len({values.shape for values in each}) == 1:
                arrays[name] = np.stack(each)
            else:
                arrays[name] = np.concatenate(each)
                arrays[_ENDS + name] = np.cumsum([len(values) for values in each])
        write_arrays(path, arrays)

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return the row of a problem.

        Raises:
            IndexError: there is no such number.
        """
        if not 0 <= number < self.count:
            raise IndexError(f"{self.name} has problems 0 to {self.count - 1}, not {number}")
        row = _Row()
        for name, values in self.arrays.items():
            ends = self.arrays.get(_ENDS + name)
            if ends is not None:
                row[name] = values[int(ends[number - 1]) if number else 0 : int(ends[number])]
            elif not name.startswith(_ENDS):
                row[name] = values[number]
        return row


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write a ``.npz`` as small as LZMA makes it, whole or not at all."""
    with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, values in arrays.items():
            info = zipfile.ZipInfo(f"{name}.npy")  # with a fixed date
            info.compress_type = zipfile.ZIP_LZMA
            with archive.open(info, "w") as stream:
                np.lib.format.write_array(stream, np.asanyarray(values), allow_pickle=False)


def write_banks(
    module: str,
    about: str | None,
    banks: Mapping[str, Callable[[], Bank]],
    arguments: Iterable[str] | None,
) -> int:
    """Make banks, a file each, as the command line says, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {module}", description=(about or "").splitlines()[0]
    )
    parser.add_argument("banks", nargs="*", metavar="BANK", help="banks (default: all)")
    parser.add_argument("--out", type=Path, default=data_folder() / FOLDER, help="their folder")
    options = parser.parse_args(None if arguments is None else list(arguments))
    for name in options.banks or banks:
        if name not in banks:
            parser.error(f"no bank {shown(name)}{among(name, banks)}")
        bank = banks[name]()
        path = options.out / bank.file
        options.out.mkdir(parents=True, exist_ok=True)
        bank.write(path)
        print(f"{path}: {len(bank):,} problems, {path.stat().st_size:,} bytes")
    return 0
