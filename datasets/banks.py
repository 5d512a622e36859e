"""``Bank``: thousands of numbered problems as compact arrays, a look-up away."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.errors import ParenvsError, one_line, shown
from parenvs.files import replacing
from parenvs.graph.checks import UNREADABLE, read_arrays
from parenvs.instances import data_folder

FOLDER = "banks"
"""Folder of the files, in that of the data."""
ENDS = "ends of "
"""Arrays of such names say where each problem's part ends in one that holds them all in a row."""
LARGEST = 2**32
"""Bytes that a bank may unpack to."""


class _Row(dict[str, Any]):
    """The arrays of a problem, whose bank's file has lost those that are not there."""

    def __missing__(self, name: str) -> Any:
        raise ParenvsError(f"{data_folder() / FOLDER}: no array {shown(name)}; see parenvs doctor")


@dataclass(eq=False)
class Bank:
    """Numbered problems, of each of which a row of arrays says all; the file ships."""

    name: str
    count: int

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
            arrays.get(ENDS + name, values).shape[:1]
            for name, values in arrays.items()
            if not name.startswith(ENDS)
        }
        if lengths != {(self.count,)}:
            raise ParenvsError(f"{path}: expected {self.count} problems; see parenvs doctor")
        return arrays

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return the row of a problem.

        Raises:
            IndexError: there is no such number.
        """
        if not 0 <= number < self.count:
            raise IndexError(f"{self.name} has problems 0 to {self.count - 1}, not {number}")
        row = _Row()
        for name, values in self.arrays.items():
            ends = self.arrays.get(ENDS + name)
            if ends is not None:
                row[name] = values[int(ends[number - 1]) if number else 0 : int(ends[number])]
            elif not name.startswith(ENDS):
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
