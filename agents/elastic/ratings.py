"""The ratings of candidates that entries of the leaderboard may hold: a small network, in NumPy.

Each candidate is rated from what is observed of it, beside what is observed of the job, of the plan
in force and of the mean of the candidates that fit. The same weights rate all candidates, so their
order and number do not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from parenvs.agents.learning.network import check_named, read_weights, single
from parenvs.arrays import Array, joined, namespace, positive
from parenvs.tasks.elastic.library import MAX_SPARES
from parenvs.tasks.elastic.course import MAX_NODES

WIDTH, LAST = 32, 16
"""Widths of the hidden layers, and of the last of them."""
OWN, JOB = 13, 19
"""Features of a candidate, and of the job."""


class Seen(NamedTuple):
    """What the network makes of observations.

    Attributes:
        own: (b, 64, OWN) features of the candidates.
        state: (b, JOB + 2 OWN) features of the job, of the plan in force, and the mean of those
            that fit.
        fits: (b, 64) 1 for candidates that train and that the nodes are enough for.
    """

    own: Array
    state: Array
    fits: Array


def features(plans: Array, change: Array, numbers: Array) -> Seen:
    """Return the features of what ``parenvs.tasks.elastic.turns`` shows.

    Speeds are told as shares of the fastest plan that fits, nodes by how many more there are than a
    plan takes, departures by how many nodes of a plan they are in an interval.

    Args:
        plans: (b, 64, 6), see ``ElasticPlanEnv``.
        change: (b, 64, 3).
        numbers: (b, 16).
    """
    xp = namespace(plans)
    nodes, leaving, joining = (numbers[:, i : i + 1] for i in (0, 13, 14))
    rate, used = plans[..., 5], plans[..., 3]
    held = used + plans[..., 4] * (MAX_SPARES / MAX_NODES)
    fits = xp.where((held <= nodes + 1e-4) & (rate > 0), 1.0 + 0.0 * rate, 0.0 * rate)
    most = xp.max(fits * rate, axis=1, keepdims=True).clip(1e-6)
    share = (rate / most).clip(0.0, 2.0)
    seconds, sent, current = change[..., 0], change[..., 1], change[..., 2]
    own = xp.stack(
        [
            (10.0 * share - 9.0).clip(-4.0, 2.0), share * seconds, share, seconds, sent, current,
            plans[..., 0], plans[..., 1], plans[..., 2], plans[..., 4], rate,
            (8.0 * (nodes - held)).clip(-1.0, 1.0), (MAX_NODES * used * leaving).clip(0.0, 2.0),
        ], axis=-1,
    )  # fmt: skip
    each = [numbers[:, i] for i in range(16)]
    net = MAX_NODES * (joining - nodes * leaving)[:, 0]
    left = each[12] / each[15].clip(1e-6)  # intervals
    scaled = zip((2.0, 8.0, 8.0, 2.0, 32.0, 8.0), each[:6], strict=True)
    job = xp.stack(
        [
            *((factor * column).clip(0.0, 4.0) for factor, column in scaled), *each[6:13],
            (20.0 * each[13]).clip(0.0, 2.0), (MAX_NODES * each[14]).clip(0.0, 4.0),
            net.clip(-2.0, 2.0), most[:, 0], (left / 30.0).clip(0.0, 1.0),
            (each[6] / most[:, 0]).clip(0.0, 1.0),
        ], axis=-1,
    )  # fmt: skip
    mine = own[xp.arange(len(own)), xp.argmax(current, axis=1)]
    mean = (own * fits[..., None]).sum(1) / fits.sum(1)[:, None].clip(1.0)
    return Seen(own, joined((job, mine, mean)), fits)


def rate(weights: Mapping[str, Array], seen: Seen) -> Array:
    """Return the ratings of candidates, (b, 64).

    Args:
        weights: by name, see ``shapes``.
        seen: the features.
    """
    w, own, state = weights, seen.own, seen.state
    context = positive(state @ w["state"] + w["first"])
    hidden = positive(own @ w["own"] + (context @ w["inner"] + w["second"])[:, None])
    deeper = positive(hidden @ w["hidden"] + (context @ w["outer"] + w["third"])[:, None])
    return deeper @ w["score"] + own @ w["prior"]


SHAPES: dict[str, tuple[int, ...]] = {
    "state": (JOB + 2 * OWN, WIDTH), "first": (WIDTH,), "own": (OWN, WIDTH),
    "inner": (WIDTH, WIDTH), "second": (WIDTH,), "hidden": (WIDTH, LAST),
    "outer": (WIDTH, LAST), "third": (LAST,), "score": (LAST,), "prior": (OWN,),
}  # fmt: skip
"""Names and shapes of the weights."""


def loaded(path: Path) -> dict[str, np.ndarray]:
    """Read weights of a ``.npz`` file, float32; nothing in it is unpickled.

    Raises:
        ParenvsError: the file cannot be read; weights are missing, unknown, of another shape, or
            not finite.
    """
    weights = read_weights(path)
    check_named(weights, SHAPES, path)
    return single(weights, SHAPES, path)
