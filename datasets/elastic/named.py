"""Jobs by name: of a set or a trace, or drawn, ``elastic/FAMILY/MODEL/WHICH``.

``WHICH`` is a number, or the state of the generator that a course was drawn by. The first courses
of each family are kept as arrays, the bank that environments play, with what hindsight and the
fastest plans earn on them.

    python -m parenvs.datasets.elastic.named            # make the banks again
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial

import numpy as np

from parenvs.core.game import generator_of, word_of
from parenvs.datasets.banks import Bank
from parenvs.datasets.elastic.drawing import FAMILIES, NODES, draw_course
from parenvs.errors import UnknownInstanceError, shown
from parenvs.tasks.elastic.course import Course, Recorded
from parenvs.tasks.elastic.load import MEASURED, load_elastic, load_library
from parenvs.tasks.elastic.problem import Elastic
from parenvs.tasks.elastic.references import Known, known_of
from parenvs.tasks.elastic.task import ElasticTask

POOL_SEED = 2026
"""Seed of the numbered courses; the sets have another."""
COUNT = 720
"""Courses of the bank of a family, each a job of every measured model."""


def drawn_by(rng: np.random.Generator, family: str, model: str) -> Elastic:
    """Draw a job, whose name has the state of the generator.

    Args:
        rng: the generator.
        family: one of ``FAMILIES``.
        model: one of ``MEASURED``.
    """
    name = _name(family, model, word_of(rng))
    return _job(model, draw_course(rng, family), name)


def numbered(number: int, family: str, model: str) -> Elastic:
    """Return a job by its number, from 0; the other arguments as of ``drawn_by``."""
    return _job(model, _course(family, number), _name(family, model, str(number)))


def of_bank(number: int, family: str, model: str) -> tuple[Elastic, Known]:
    """Return a job of the bank, and what is known of it; arguments as of ``numbered``."""
    row, column = bank(family)[number], MEASURED.index(model)
    known = Known(float(row["hindsight"][column]), float(row["fastest"][column]))
    return numbered(number, family, model), known


@lru_cache(maxsize=len(FAMILIES))
def bank(family: str) -> Bank:
    """Return the bank of a family."""
    return Bank(f"elastic-{family}", COUNT, partial(_row, family))


def _course(family: str, number: int) -> Course:
    if number >= COUNT:
        return _drawn(family, number)
    return _courses(family).of(number)


@lru_cache(maxsize=len(FAMILIES))
def _courses(family: str) -> Course:
    joined, gone = (bank(family).arrays[name] for name in ("joined", "gone"))
    return Course.of_bits(joined[:, 0], joined, gone.astype(np.uint64), NODES)


def _drawn(family: str, number: int) -> Course:
    words = [POOL_SEED, FAMILIES.index(family), number]
    return draw_course(np.random.default_rng(words), family)


def _row(family: str, number: int) -> Mapping[str, np.ndarray]:
    """Return what a bank keeps of a course."""
    course = _drawn(family, number)
    known = [known_of(_job(model, course, "")) for model in MEASURED]
    return {
        "joined": course.joined.astype(np.uint8),
        "gone": course.bits().astype(np.uint32),
        "hindsight": np.array([each.best for each in known]),
        "fastest": np.array([each.start for each in known]),
    }


def _job(model: str, course: Course, name: str) -> Elastic:
    return Elastic(load_library(model), Recorded(name, course), name=name, checkpoints=True)


def find_elastic(name: str) -> Elastic:
    """Return a job of a shipped set or a trace, or a drawn one.

    Raises:
        UnknownInstanceError: there is none of this name.
    """
    first, *words = name.split("/")
    if first not in ElasticTask.drawn or name.endswith(".csv"):
        return load_elastic(name)
    if len(words) == 3 and words[0] in FAMILIES and words[1] in MEASURED:
        family, model, which = words
        if which.isdecimal() and len(which) < 10:
            return numbered(int(which), family, model)
        rng = generator_of(which)
        if rng is not None:
            return drawn_by(rng, family, model)
    like = _name(FAMILIES[0], MEASURED[0], "17")
    raise UnknownInstanceError(
        f"unknown problem {shown(name)}; drawn ones are called like {like}: "
        f"family ({', '.join(FAMILIES)}), model ({', '.join(MEASURED)}) and number"
    )


def _name(family: str, model: str, which: str) -> str:
    return f"{ElasticTask.drawn[0]}/{family}/{model}/{which}"
