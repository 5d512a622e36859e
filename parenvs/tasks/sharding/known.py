"""The contest's problems: time limits and costs that are known.

ASPLOS 2025 / EuroSys 2025 contest on intra-operator parallelism, arXiv 2501.10387; best costs of
its teams, and bounds and costs that were known before this solver.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from parenvs.errors import ParenvsError


class Known(NamedTuple):
    """What is known of a problem of the contest.

    Attributes:
        model: what was partitioned.
        seconds: the contest's time limit, on 8 cores.
        contest: cost of the best team.
        best: best cost known.
        bound: lower bound known before this solver.
    """

    model: str
    seconds: int
    contest: int
    best: int
    bound: int


KNOWN: dict[str, Known] = {
    letter: Known(*row)
    for letter, row in {
        "A": ("GNS", 60, 6548641531, 6548641531, 6513812172),
        "B": ("Transformer", 60, 532843, 532843, 532843),
        "C": ("Gemma1-2B", 60, 84102445260, 84102445244, 82509087987),
        "D": ("Gemma1-7B", 60, 313613524736, 309396217429, 298253500099),
        "G": ("Transformer", 120, 217039, 217039, 216931),
        "K": ("GNS", 180, 2274276676, 2242635784, 2065623588),
        "L": ("U-Net", 180, 1970993742, 1970993742, 1918617707),
        "M": ("Gemma1-2B", 180, 49928460991, 49928157537, 49407421919),
        "N": ("Gemma1-7B", 180, 202739586553, 199470115118, 172940125422),
        "P": ("Gemma1-27B", 240, 662197407330, 651833115436, 616246285727),
        "Q": ("Gemma2-9B", 240, 526776842042, 526776842042, 505549458726),
        "R": ("Gemma2-27B", 240, 371899551572, 351826900528, 304520000000),
        "S": ("U-Net", 240, 1534613444, 1521949307, 1511240136),
        "T": ("Diffusion", 240, 682895254913, 656798881333, 585686829499),
        "U": ("GNS", 300, 2569342178, 2443995952, 2018900000),
        "V": ("Transformer", 300, 1632051, 1617084, 1617084),
    }.items()
}
"""Letter of a problem -> what is known of it."""
SHA256 = {
    "B": "03d742412734762fe2e9cebcdfe381a6508c2e33be14a44625156256f55215f2",
    "G": "c63898defb2136a47ea1cd8c264891dac82ae0223c6348884e6940ba986cd2bf",
    "K": "ee4ce51d2a74c5735df5722349ae78c2defae36f49c0badfd7823a460403f4da",
    "L": "591864a653a99000b9fe8d705b1ed0f496abfda7ca367d5da0fb8e6398d75949",
    "P": "42305e52616128d6b36a46c4db015e718c525e70c0563b5a77ac672ddf1a7773",
    "V": "22918f968ce8cde6266ecaea5e1075e6ab74580986cd57d5be77445b985a7c72",
}
"""Letter of a problem -> SHA-256 of its file ``asplos-2025-iopddl-<letter>.json.gz``."""


def known(name: str) -> Known | None:
    """Return what is known of a problem by its name, like ``asplos-2025-iopddl-B``."""
    return KNOWN.get(name.removeprefix("asplos-2025-iopddl-"))


def check_file(path: str | os.PathLike[str], name: str) -> bool:
    """Compare a file with the contest's; whether the contest's is known.

    Args:
        path: the file.
        name: name of the problem in it.

    Raises:
        ParenvsError: the file is not the contest's, though its problem has a name of it.
    """
    expected = SHA256.get(name.removeprefix("asplos-2025-iopddl-"))
    if expected is None or not os.fspath(path).endswith(".gz"):
        return False
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    if digest != expected:
        raise ParenvsError(
            f"{os.fspath(path)}: it calls itself {name}, but its SHA-256 is {digest}, not that of "
            f"the contest's file, {expected}; rename the problem or take the contest's file"
        )
    return True
