"""Names how a training is spread: one word, and how many actors and learners there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from parenvs.errors import ParenvsError, did_you_mean, shown

SINGLE, ACTORS, LEARNERS, ASYNC, FUSED = "single", "actors", "learners", "async", "fused"
WORDS = {
    SINGLE: "environments and updates in one process",
    ACTORS: "environments in Ray actors, updates in this process",
    LEARNERS: "environments and updates in Ray actors, their gradients all-reduced",
    ASYNC: "RLlib's APPO: environments and updates do not wait for each other",
    FUSED: "environments and updates as tensors on one device",
}
"""Word of a distribution -> what it does."""
COUNTS: dict[str, dict[str, int]] = {
    SINGLE: {},
    ACTORS: {"actors": 2},
    LEARNERS: {"learners": 2},
    ASYNC: {"actors": 2, "learners": 1},
    FUSED: {},
}
"""Word -> the counts that it takes, with their defaults."""
MOST = 4096
"""Most actors, and most learners."""


@dataclass(frozen=True)
class Distribution:
    """How a training is spread.

    Attributes:
        word: a key of ``WORDS``.
        actors: processes that play environments and do not learn.
        learners: processes that learn; those of ``LEARNERS`` play their own environments.
    """

    word: str = SINGLE
    actors: int = 0
    learners: int = 0

    @classmethod
    def of(cls, word: str, **counts: int | None) -> Distribution:
        """Make a distribution of what the command line gives.

        Args:
            word: a key of ``WORDS``.
            **counts: ``actors`` and ``learners``; None leaves the default of the word.

        Raises:
            ParenvsError: the word is unknown, or takes no such count, or not that many.
        """
        if word not in WORDS:
            raise ParenvsError(
                f"--distribution: no way {shown(word)}{did_you_mean(word, WORDS)}; known: "
                f"{', '.join(WORDS)}"
            )
        chosen = dict(COUNTS[word])
        for name, count in counts.items():
            if count is None:
                continue
            if name not in chosen:
                raise ParenvsError(f"--{name} is not an option of --distribution {word}")
            if not 1 <= count <= MOST:
                raise ParenvsError(f"--{name} must be from 1 to {MOST}, not {count}")
            chosen[name] = count
        return cls(word, **chosen)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Distribution:
        """Read a distribution of a run's configuration, which may be anything.

        Raises:
            ParenvsError: it is none.
        """
        word, counts = content.get("word", SINGLE), {k: content[k] for k in content if k != "word"}
        if not isinstance(word, str) or word not in WORDS:
            raise ParenvsError(f"no distribution {shown(word)}; known: {', '.join(WORDS)}")
        if counts.keys() != COUNTS[word].keys():
            wanted = ", ".join(COUNTS[word]) or "no count"
            raise ParenvsError(f"distribution {word!r} takes {wanted}, not {shown(list(counts))}")
        for name, count in counts.items():
            if type(count) is not int or not 1 <= count <= MOST:
                raise ParenvsError(
                    f"{name} of a distribution: expected a whole number from 1 to {MOST}, not "
                    f"{shown(count)}"
                )
        return cls(word, **counts)

    def to_json(self) -> dict[str, Any]:
        """The object of a run's configuration; empty for ``SINGLE``."""
        if self.word == SINGLE:
            return {}
        return {"word": self.word, **{name: getattr(self, name) for name in COUNTS[self.word]}}

    @property
    def processes(self) -> int:
        """Ray actors that the distribution starts."""
        return self.actors + self.learners

    def shares(self, envs: int) -> tuple[int, ...]:
        """Environments of each process that plays, as equal as can be.

        Args:
            envs: number of environments of all together.

        Raises:
            ParenvsError: there are more processes than environments.
        """
        name = "learners" if self.word == LEARNERS else "actors"
        count = getattr(self, name)
        if count > envs:
            raise ParenvsError(
                f"--{name} {count} is more than the {envs} environments that the agent plays at "
                "once; give fewer"
            )
        return tuple(envs // count + (k < envs % count) for k in range(count))
