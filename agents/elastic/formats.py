"""Policies as data: a decision table, a network, a rule by name, or recorded runs.

All of them choose by what ``parenvs.agents.elastic.play`` shows, in version ``OBSERVATION``.
Nothing in them is code, and every size is checked before anything is made of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from parenvs.agents.elastic.policies import RULES
from parenvs.agents.learning.network import check_named, read_weights, single
from parenvs.arrays import Array, joined, namespace, positive
from parenvs.core.leaderboard import PolicyError
from parenvs.errors import did_you_mean, shown
from parenvs.tasks.elastic.library import EVENTS, MAX_PLANS, MAX_SPARES
from parenvs.tasks.elastic.problem import MAX_INTERVALS, MAX_NODES
from parenvs.tasks.elastic.problems import MEASURED, load_library

PLAN_COLUMNS = ("tensor", "pipeline", "data", "nodes", "spares", "rate")
"""Columns of the observation's ``plans``: log2(1 + degree) / 7 of T, P and D, nodes that train over
64, spares over 2, samples a second over those of the fastest candidate."""
CHANGE_COLUMNS = ("seconds", "bytes", "current")
"""Columns of the observation's ``change``, from the plan in force and what happened to it: seconds
of the change over an interval, at most 1; bytes that the busiest node sends over those of the
state; 1 for the plan in force."""
NUMBERS = (
    "nodes", "joined", "left", "used", "spares", "idle", "rate", "lost", "ready", "gone", "since",
    "quiet", "remaining", "leaving", "joining", "interval",
)  # fmt: skip
"""Names of the observation's ``numbers``: nodes there, joined, left, in use, spares, idle (all over
64); rate of the plan in force over the fastest; nodes in use that were lost over 4; 1 if spares are
ready; 1 if state is lost; intervals since the state was safe over those between checkpoints, since
the last event over 60; share of the episode that remains; running means of the departures of a node
and of joins over 64; 1 / intervals of an episode."""
WIDTH, LAST = 32, 16
"""Widths of the hidden layers, and of the last of them."""
PLAN_FEATURES, JOB = 13, 19
"""Features of a candidate, and of the job."""


class Seen(NamedTuple):
    """What the network makes of observations.

    Attributes:
        own: (b, 64, PLAN_FEATURES) features of the candidates.
        state: (b, JOB + 2 PLAN_FEATURES) features of the job, of the plan in force, and the mean
            of those that fit.
        fits: (b, 64) 1 for candidates that train and that the nodes are enough for.
    """

    own: Array
    state: Array
    fits: Array


def features(plans: Array, change: Array, numbers: Array) -> Seen:
    """Return the features of what ``parenvs.agents.elastic.play`` shows.

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
    "state": (JOB + 2 * PLAN_FEATURES, WIDTH), "first": (WIDTH,), "own": (PLAN_FEATURES, WIDTH),
    "inner": (WIDTH, WIDTH), "second": (WIDTH,), "hidden": (WIDTH, LAST),
    "outer": (WIDTH, LAST), "third": (LAST,), "score": (LAST,), "prior": (PLAN_FEATURES,),
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


OBSERVATION = 1
"""Version of what networks see: ``Network.seen``."""
KINDS = ("table", "network", "ratings", "rule", "recorded")
REFERENCES = ("hindsight", "look-ahead", "optimal")
"""Entries that may be recorded runs: the references, which know what no policy does, and a rule
that takes long."""
OWN = len(PLAN_COLUMNS) + len(CHANGE_COLUMNS) + 1 + len(NUMBERS)
"""Features of a candidate that a network sees: its own, one beside the others, the job's."""
MOST_LAYERS, MOST_WIDTH = 4, 256
"""Layers of a part of a network, and outputs of a layer, at most."""
PARTS = ("each", "job", "score")
"""Parts of a network: of each candidate, of the job's numbers, and of both together."""
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
}
"""What follows a layer."""
_FIELDS = {
    "table": ("observation", "tables"),
    "network": ("observation", "layers"),
    "ratings": ("observation", "weights"),
    "rule": ("rule",),
    "recorded": ("seed", "rule", "plans"),
}
# Largest weight, so that no sum leaves float32.
_LARGEST = 1e6


@dataclass(frozen=True)
class Table:
    """A decision table: the next plan by what happened, the nodes, and the plan in force.

    Attributes:
        choices: name of a library -> (EVENTS, N+1, K) int64, the plan; more nodes than N count as
            N, and plans that the nodes are not enough for become 0, to wait.
    """

    choices: Mapping[str, np.ndarray]
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class Layer:
    """``activation(x @ weights + biases)``.

    Attributes:
        weights: (in, out) float32.
        biases: (out,) float32.
        activation: a key of ``ACTIVATIONS``.
    """

    weights: np.ndarray
    biases: np.ndarray
    activation: str

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the outputs, (..., out)."""
        return ACTIVATIONS[self.activation](x @ self.weights + self.biases)


@dataclass(frozen=True)
class Network:
    """Scores candidates one by one; the one of the largest score that the nodes allow is chosen.

    ``each`` sees a candidate (``seen``). ``score`` sees what ``each`` made of it, the mean of that
    over the candidates that the nodes are enough for, and what ``job`` made of the job's numbers.
    Without ``score`` what ``each`` makes, one number, is the score.

    Attributes:
        each: layers from ``OWN`` inputs.
        job: layers from the 16 numbers of the job; may be empty.
        score: layers to one output; may be empty.
    """

    each: tuple[Layer, ...]
    job: tuple[Layer, ...] = ()
    score: tuple[Layer, ...] = ()
    kind: ClassVar[str] = "network"

    def scores(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the scores of candidates, (n, 64) float32.

        Args:
            observation: of the native batch: ``plans``, ``change``, ``numbers``.
        """
        x, fits = self.seen(observation)
        for layer in self.each:
            x = layer(x)
        if not self.score:
            return np.asarray(x[..., 0])
        count = np.maximum(fits.sum(axis=1, keepdims=True), 1).astype(np.float32)
        mean = (x * fits[..., None]).sum(axis=1) / count
        y = observation["numbers"]
        for layer in self.job:
            y = layer(y)
        others = np.concatenate([mean, y] if self.job else [mean], axis=1)[:, None]
        x = np.concatenate([x, np.broadcast_to(others, (*x.shape[:2], others.shape[2]))], axis=2)
        for layer in self.score:
            x = layer(x)
        return np.asarray(x[..., 0])

    @staticmethod
    def seen(observation: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Return what ``each`` sees, (n, 64, OWN) float32, and which candidates fit, (n, 64).

        A candidate's own columns are ``plans`` and ``change``; then 10 (rate / fastest that fits -
        0.9), as rates that differ little decide; then the 16 numbers.
        """
        plans, change, numbers = (observation[key] for key in ("plans", "change", "numbers"))
        fits = plans[..., 3] + plans[..., 4] / np.float32(32) <= numbers[:, None, 0] + 1e-6
        rate = plans[..., 5]
        highest = np.maximum((rate * fits).max(axis=1, keepdims=True), np.float32(1e-6))
        share = np.float32(10) * (rate / highest - np.float32(0.9))
        repeated = np.broadcast_to(numbers[:, None], (*rate.shape, numbers.shape[1]))
        return np.concatenate([plans, change, share[..., None], repeated], axis=2), fits


@dataclass(frozen=True)
class Ratings:
    """Rates candidates by ``parenvs.agents.elastic.formats``; the best is chosen.

    Attributes:
        weights: by name, float32.
    """

    weights: Mapping[str, np.ndarray]
    kind: ClassVar[str] = "ratings"

    def scores(self, observation: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the ratings of candidates, (n, 64) float32.

        Args:
            observation: of the native batch: ``plans``, ``change``, ``numbers``.
        """
        seen = features(*(observation[key] for key in ("plans", "change", "numbers")))
        return np.asarray(rate(self.weights, seen))


@dataclass(frozen=True)
class Rule:
    """A rule of ``parenvs.agents.elastic.policies``, by its name."""

    name: str
    kind: ClassVar[str] = "rule"


@dataclass(frozen=True)
class Recorded:
    """What was chosen on the courses of one seed: no policy, but a reference can be judged so.

    Attributes:
        plans: name of a problem -> plans of each course.
        rule: what chose them, which plays where the seed is another one; None if no rule did.
    """

    seed: int
    plans: Mapping[str, tuple[tuple[int, ...], ...]]
    rule: Rule | None = None
    kind: ClassVar[str] = "recorded"


Policy: TypeAlias = Table | Network | Ratings | Rule | Recorded


def read_policy(content: Any, entry: object = None) -> Policy:
    """Make a policy of JSON types, which may be anything.

    Args:
        content: the field ``policy`` of an entry.
        entry: name of the entry.

    Raises:
        PolicyError: it is none.
    """
    if not isinstance(content, dict):
        raise PolicyError(f"must be an object, not {shown(content)}")
    kind = content.get("kind")
    if kind not in KINDS:
        raise PolicyError(f"field 'kind' is {shown(kind)}; known: {', '.join(KINDS)}")
    known = ("kind", *_FIELDS[kind])
    for key in content:
        if key not in known:
            raise PolicyError(f"unknown field {shown(key)}{did_you_mean(key[:80], known)}")
    for key in known:
        if key not in content:
            raise PolicyError(f"field {key!r} is missing")
    seen = content.get("observation", OBSERVATION)
    if type(seen) is not int or seen != OBSERVATION:
        raise PolicyError(
            f"field 'observation' is {shown(seen)}; this version of parenvs has {OBSERVATION}"
        )
    if kind == "rule":
        return _rule(content["rule"])
    if kind == "recorded":
        if entry not in REFERENCES:
            raise PolicyError(
                f"field 'kind' is 'recorded', which is for {', '.join(REFERENCES)}; enter a table, "
                "a network or a rule"
            )
        return _recorded(content)
    if kind == "ratings":
        return _ratings(content["weights"])
    return _table(content["tables"]) if kind == "table" else _network(content["layers"])


def _rule(name: Any) -> Rule:
    if not isinstance(name, str) or name not in RULES:
        near = did_you_mean(name[:80], RULES) if isinstance(name, str) else ""
        raise PolicyError(f"field 'rule' is {shown(name)}{near}; known: {', '.join(RULES)}")
    return Rule(name)


def _table(tables: Any) -> Table:
    if not isinstance(tables, dict) or not 1 <= len(tables) <= 16:
        raise PolicyError("field 'tables' must be an object of 1 to 16 libraries")
    choices, known = {}, [load_library(model).name for model in MEASURED]
    for name, rows in tables.items():
        where = f"field 'tables.{name[:60]}'"
        if name not in known:
            raise PolicyError(
                f"{where} is of no library that is played{did_you_mean(name[:80], known)}; known: "
                f"{', '.join(known)}"
            )
        array = _whole_numbers(rows, where)
        if array.ndim != 3 or array.shape[0] != EVENTS:
            raise PolicyError(
                f"{where} must be {EVENTS} x nodes x plans numbers, not {_sizes(array.shape)}"
            )
        if not (1 <= array.shape[1] <= MAX_NODES + 1 and 1 <= array.shape[2] <= MAX_PLANS):
            raise PolicyError(
                f"{where} has {_sizes(array.shape)} numbers; at most {EVENTS} x {MAX_NODES + 1} x "
                f"{MAX_PLANS}"
            )
        if array.min() < 0 or array.max() >= array.shape[2]:
            raise PolicyError(f"{where} names plans out of 0 to {array.shape[2] - 1}")
        choices[name] = array
    return Table(choices)


def _network(layers: Any) -> Network:
    if not isinstance(layers, dict) or not {"each"} <= set(layers) <= set(PARTS):
        raise PolicyError(f"field 'layers' must have 'each', and may have {', '.join(PARTS[1:])}")
    made: dict[str, tuple[Layer, ...]] = {}
    inputs = {"each": OWN, "job": len(NUMBERS)}
    for part in (part for part in PARTS if part in layers):
        rows, where = layers[part], f"field 'layers.{part}'"
        if part == "score":
            job = made.get("job", ())
            inputs["score"] = 2 * len(made["each"][-1].biases)
            inputs["score"] += len(job[-1].biases) if job else 0
        if not isinstance(rows, list) or not 1 <= len(rows) <= MOST_LAYERS:
            raise PolicyError(f"{where} must be a list of 1 to {MOST_LAYERS} layers")
        size, of_part = inputs[part], []
        for number, row in enumerate(rows):
            of_part.append(_layer(row, size, f"field 'layers.{part}.{number}'"))
            size = len(of_part[-1].biases)
        made[part] = tuple(of_part)
    last = "score" if "score" in made else "each"
    if len(made[last][-1].biases) != 1:
        raise PolicyError(f"field 'layers.{last}' must end with one output, the score")
    if "job" in made and "score" not in made:
        raise PolicyError("field 'layers.job' needs 'score', which takes it")
    return Network(**made)


def _ratings(weights: Any) -> Ratings:
    if not isinstance(weights, dict) or set(weights) != set(SHAPES):
        raise PolicyError(f"field 'weights' must have exactly {', '.join(SHAPES)}")
    ratings = {}
    for name, shape in SHAPES.items():
        ratings[name] = _numbers(weights[name], f"field 'weights.{name}'")
        if ratings[name].shape != shape:
            raise PolicyError(
                f"field 'weights.{name}' is {_sizes(ratings[name].shape)} numbers, "
                f"not {_sizes(shape)}"
            )
    return Ratings(ratings)


def _layer(content: Any, inputs: int, where: str) -> Layer:
    known = {"weights", "biases", "activation"}
    if not isinstance(content, dict) or set(content) != known:
        raise PolicyError(f"{where} must have exactly {', '.join(sorted(known))}")
    activation = content["activation"]
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise PolicyError(
            f"{where}.activation is {shown(activation)}; known: {', '.join(ACTIVATIONS)}"
        )
    weights = _numbers(content["weights"], f"{where}.weights")
    biases = _numbers(content["biases"], f"{where}.biases")
    if biases.ndim != 1 or not 1 <= len(biases) <= MOST_WIDTH:
        raise PolicyError(f"{where}.biases must be 1 to {MOST_WIDTH} numbers")
    if weights.shape != (inputs, len(biases)):
        raise PolicyError(
            f"{where}.weights is {_sizes(weights.shape)} numbers; {inputs} inputs and "
            f"{len(biases)} outputs have {inputs} x {len(biases)}"
        )
    return Layer(weights, biases, activation)


def _recorded(content: dict[str, Any]) -> Recorded:
    seed, plans = content["seed"], content["plans"]
    rule = None if content["rule"] is None else _rule(content["rule"])
    if type(seed) is not int or not 0 <= seed < 2**31:
        raise PolicyError(f"field 'seed' must be a whole number from 0, not {shown(seed)}")
    if not isinstance(plans, dict):
        raise PolicyError("field 'plans' must be an object of problems")
    runs = {}
    for name, courses in plans.items():
        if not isinstance(courses, list) or not 1 <= len(courses) <= 64:
            raise PolicyError(f"field 'plans.{name[:80]}' must be a list of 1 to 64 courses")
        for course in courses:
            is_plans = isinstance(course, list) and len(course) <= MAX_INTERVALS
            if not (is_plans and all(type(k) is int and 0 <= k < MAX_PLANS for k in course)):
                raise PolicyError(
                    f"field 'plans.{name[:80]}' must be lists of plans from 0 to {MAX_PLANS - 1}"
                )
        runs[name] = tuple(map(tuple, courses))
    return Recorded(seed, runs, rule)


def _numbers(content: Any, where: str) -> np.ndarray:
    """Return nested lists, or an array, as finite float32; nothing is made of other types."""
    if not isinstance(content, np.ndarray):
        flat, shape = _flat(content, (int, float), where)
        content = np.array(flat, dtype=np.float64).reshape(shape)
    if not np.isfinite(content).all() or np.abs(content).max(initial=0.0) > _LARGEST:
        raise PolicyError(f"{where} must be finite numbers of at most {_LARGEST:g}")
    return np.asarray(content, dtype=np.float32)


def _whole_numbers(content: Any, where: str) -> np.ndarray:
    flat, shape = _flat(content, (int,), where)
    if any(abs(value) > MAX_PLANS for value in flat):
        raise PolicyError(f"{where} must be numbers of plans")
    return np.array(flat, dtype=np.int64).reshape(shape)


def _flat(content: Any, types: tuple[type, ...], where: str) -> tuple[list[Any], tuple[int, ...]]:
    """Return the numbers of nested lists of equal lengths, and their sizes."""
    level: list[Any] = [content]
    shape: list[int] = []
    while all(isinstance(part, list) for part in level):
        lengths = {len(part) for part in level}
        if len(lengths) != 1 or lengths == {0} or len(shape) == 3:
            raise PolicyError(f"{where} must be lists of equal length, of up to three dimensions")
        shape.append(lengths.pop())
        level = [item for part in level for item in part]
    if not shape or not all(type(item) in types for item in level):
        raise PolicyError(f"{where} must be lists of numbers")
    return level, tuple(shape)


def _sizes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "no"


def with_arrays(content: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return a policy whose weights lie in a file, with the weights as JSON types.

    Args:
        content: the field ``policy`` without what names the file; ``activations`` gives, for each
            part of a network, those of its layers.
        arrays: of the file: ``PART_NUMBER_weights`` and ``PART_NUMBER_biases``.

    Raises:
        PolicyError: the fields or the arrays are wrong.
    """
    activations = content.get("activations")
    if not isinstance(activations, dict) or not set(activations) <= set(PARTS):
        raise PolicyError("field 'activations' must be an object of parts, each a list")
    left = dict(arrays)
    layers: dict[str, list[Any]] = {}
    for part, names in activations.items():
        if not isinstance(names, list) or len(names) > MOST_LAYERS:
            raise PolicyError(f"field 'activations.{part}' must be a list of layers")
        layers[part] = []
        for number, activation in enumerate(names):
            row: dict[str, Any] = {"activation": activation}
            for key in ("weights", "biases"):
                array = left.pop(f"{part}_{number}_{key}", None)
                if array is None:
                    raise PolicyError(f"field 'file': it has no {part}_{number}_{key}")
                if array.dtype.kind != "f" or math.prod(array.shape) > OWN * MOST_WIDTH * 10:
                    raise PolicyError(f"field 'file': {part}_{number}_{key} must be small floats")
                row[key] = array.astype(np.float64).tolist()
            layers[part].append(row)
    if left:
        raise PolicyError(f"field 'file': it has {shown(next(iter(left)))}, which is no layer")
    others = {key: value for key, value in content.items() if key != "activations"}
    return {**others, "layers": layers}
