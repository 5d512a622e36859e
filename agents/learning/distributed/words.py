"""The words for how a training is distributed, and what each of them says.

A word says three things: where environments and policy are, how many learners there are, and how
they learn together. All words but ``server`` with a staleness give the same weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from parenvs.errors import ParenvsError, did_you_mean, shown

if TYPE_CHECKING:
    from parenvs.agents.learning.algorithm import Algorithm

HERE, ACTORS, ENVS, DEVICE = "here", "actors", "environments", "device"
"""Where turns are played: in the learner's process; by actors that have the policy, too; by
processes of environments that ask the learner for every action; on the learner's device."""
ALONE, REDUCED, SERVED = "alone", "reduced", "served"
"""How learners learn together: one learns alone; all-reduced; by a server."""


class Word(NamedTuple):
    """What a word says.

    Attributes:
        plays: one of ``HERE``, ``ACTORS``, ``ENVS``, ``DEVICE``.
        learns: one of ``ALONE``, ``REDUCED``, ``SERVED``.
    """

    plays: str
    learns: str


SINGLE = "single"
WORDS = {
    SINGLE: Word(HERE, ALONE),
    "actors": Word(ACTORS, ALONE),
    "inference": Word(ENVS, ALONE),
    "learners": Word(HERE, REDUCED),
    "environments": Word(ENVS, REDUCED),
    "server": Word(HERE, SERVED),
    "fused": Word(DEVICE, REDUCED),
}


def word_of(name: str, staleness: int | None = None) -> Word:
    """Return what a word says.

    Raises:
        ParenvsError: there is no such word, or it knows no staleness.
    """
    if name not in WORDS:
        raise ParenvsError(
            f"no distribution {shown(name)}{did_you_mean(name, WORDS)}; known: {', '.join(WORDS)}"
        )
    if staleness is not None and WORDS[name].learns != SERVED:
        raise ParenvsError(f"staleness is of the distribution server, not of {name}")
    return WORDS[name]


def check_agent(name: str, kind: type[Algorithm]) -> None:
    """Check that an algorithm can be distributed so.

    Raises:
        ParenvsError: several learners cannot share its update.
    """
    if WORDS[name].learns != ALONE and not kind.divides:
        able = ", ".join(word for word, says in WORDS.items() if says.learns == ALONE)
        raise ParenvsError(
            f"{kind.name} has an update that learners cannot share; it can be distributed as {able}"
        )
