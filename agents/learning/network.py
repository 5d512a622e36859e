"""``Network``: the network over rows as arrays, which plays without PyTorch; those that ship."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from parenvs.compiled import Array
from parenvs.core.game import AHEAD, EVERY, Stream
from parenvs.core.registry import environments
from parenvs.core.task import late
from parenvs.errors import InfeasibleError, ParenvsError, one_line, shown
from parenvs.files import replacing
from parenvs.graph.checks import UNREADABLE, read_arrays

LAYERS = ("context", "action", "row.1", "pool.0", "head.0", "last")
"""Layers of a policy; ``action`` has no biases."""
_NAMES = ("weight", *(f"{x}.{y}" for x in LAYERS for y in ("weight", "bias")))
WEIGHTS = tuple(name for name in _NAMES if name != "action.bias")
"""Names of arrays: the weight of the heuristic's score, then weights and biases of layers."""
BLOCK = 32
"""Rows that are multiplied together."""
LOWEST = np.float32(-1e9)
"""Rating of illegal actions."""


class Network:
    """Computes logits as ``parenvs.agents.learning.net.RowsNet`` does, in NumPy.

    The weights, name -> float array by ``WEIGHTS``, are those of a ``RowsNet`` with one output for
    each action, without attention.

    Raises:
        ParenvsError: weights are missing, unknown, of another shape, or not finite.
    """

    env_id: str | None = None
    settings: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, weights: Mapping[str, Any], where: str = "weights") -> None:
        if sorted(weights) != sorted(WEIGHTS):
            raise ParenvsError(
                f"{where}: weights must be named {', '.join(WEIGHTS)}; not {shown([*weights])}"
            )
        arrays = {name: np.asarray(weights[name]) for name in WEIGHTS}
        width = arrays["context.bias"].size
        self.features, self.contexts = (arrays[f"{x}.weight"].shape[-1:] for x in LAYERS[1::-1])
        columns = {
            "context": sum(self.contexts), "action": sum(self.features), "row.1": width,
            "pool.0": 2 * width + sum(self.contexts), "head.0": 2 * width, "last": width,
        }  # fmt: skip
        self.weights: dict[str, Array] = {}
        for name, array in arrays.items():
            layer, _, kind = name.rpartition(".")
            shape: tuple[int, ...] = ()
            if layer:
                rows = 1 if layer == "last" else width
                shape = (rows,) if kind == "bias" else (rows, columns[layer])
            is_float = array.dtype.kind == "f"
            with np.errstate(over="ignore"):
                values = array.astype(np.float32) if is_float else array
            if array.shape != shape or not is_float or not np.isfinite(values).all():
                raise ParenvsError(
                    f"{where}: {name!r} must be finite numbers of the shape {shape}, not "
                    f"{array.dtype} {array.shape}"
                )
            self.weights[name] = values

    @classmethod
    def load(cls, path: Path) -> Network:
        """Read the weights of an ``.npz`` file; nothing in it is unpickled.

        Raises:
            ParenvsError: the file cannot be read, or its weights are wrong.
        """
        try:
            weights = read_arrays(path)
        except UNREADABLE as error:
            raise ParenvsError(f"{path}: no file of weights ({one_line(error)})") from None
        return cls(weights, str(path))

    def save(self, path: Path) -> None:
        """Write the weights into an ``.npz`` file."""
        with replacing(path) as stream:
            np.savez_compressed(stream, **self.weights)  # type: ignore[arg-type]

    def rate(self, observation: Mapping[str, Array]) -> Array:
        """Return the logits of actions, (n, A) float32; those of illegal ones are ``LOWEST``.

        Raises:
            ParenvsError: the network is of rows with other columns.
        """
        rows, context = observation["actions"], observation["context"]
        if (rows.shape[2:], context.shape[1:]) != (self.features, self.contexts):
            raise ParenvsError(
                f"the network sees {sum(self.features)} columns of rows and {sum(self.contexts)} "
                f"of context, and the environment shows {rows.shape[2]} and {context.shape[1]}"
            )
        legal = observation["action_mask"].astype(np.bool_)
        # Illegal rows are left out of all that follows.
        owner, _ = np.nonzero(legal)
        rows, count = halved(rows[legal]), legal.sum(axis=1)
        first = np.concatenate([[0], count.cumsum()[:-1]])
        hidden = _product(rows, self.weights["action.weight"].T)
        hidden += self._layer("context", context)[owner]
        hidden = _positive(self._layer("row.1", _positive(hidden)))
        mean = np.add.reduceat(hidden, first) / count[:, None].astype(np.float32)
        pooled = np.concatenate([mean, np.maximum.reduceat(hidden, first), context], axis=1)
        pooled = _positive(self._layer("pool.0", pooled))
        # The head's layer of (row, pool) is a sum of two, of which one is the turn's.
        width = hidden.shape[1]
        weights = self.weights["head.0.weight"].T
        shared = _product(pooled, weights[width:]) + self.weights["head.0.bias"]
        head = _positive(_product(hidden, weights[:width]) + shared[owner])
        rated = self._layer("last", head)[:, 0] + self.weights["weight"] * rows[:, 0]
        result = np.full(legal.shape, LOWEST)
        result[legal] = rated
        return result

    def predict(
        self, observation: Mapping[str, Array], action_masks: Array, **_: Any
    ) -> tuple[Array, None]:
        """Return the best actions, never drawn ones, of one observation or of a batch, and None."""
        if action_masks.ndim == 1:
            observation = {name: values[None] for name, values in observation.items()}
            return self.predict(observation, action_masks[None])[0][0], None
        return self.rate(observation).argmax(axis=1), None

    def _layer(self, name: str, inputs: Array) -> Array:
        weights, biases = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return np.asarray(_product(inputs, weights.T) + biases)


def halved(rows: Array) -> Array:
    """Return rows, (..., F) float32, whose features have half precision, but for column 0."""
    largest = float(np.finfo(np.float16).max)
    features = rows[..., 1:].clip(-largest, largest).astype(np.float16)
    return np.concatenate([rows[..., :1], features], axis=-1, dtype=np.float32)


def _product(rows: Array, weights: Array) -> Array:
    """Return ``rows @ weights`` in blocks for which BLAS takes one thread: more are slower."""
    padded = np.zeros((len(rows) + -len(rows) % BLOCK, rows.shape[1]), rows.dtype)
    padded[: len(rows)] = rows
    product = padded.reshape(-1, BLOCK, rows.shape[1]) @ weights
    return product.reshape(-1, weights.shape[1])[: len(rows)]


def _positive(values: Array) -> Array:
    return np.maximum(values, 0.0)


def file_of(env_id: str) -> Path:
    """Return the file of the network that ships for an environment."""
    return Path(str(resources.files("parenvs.agents.learning") / "data" / f"{env_id}.npz"))


@cache
def shipped(env_id: str) -> Network:
    """Return the network that ships for an environment, or raise ``ParenvsError``; cached."""
    path = file_of(env_id)
    if not path.is_file():
        ids = sorted(x.stem for x in path.parent.glob("*.npz"))
        raise ParenvsError(f"no network ships for {env_id}; networks ship for {', '.join(ids)}")
    network = Network.load(path)
    about = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    network.env_id, network.settings = env_id, {"rows": AHEAD, **about.get("plays", {})}
    return network


PATIENCE = 8
"""Turns that an episode which has a plan goes on without a better one; networks seldom stop."""


class Rater(Protocol):
    """A policy over rows."""

    def rate(self, observation: Mapping[str, Array]) -> Array:
        """Return logits of actions, (n, A), very low ones of illegal actions."""


class Decoded(NamedTuple):
    """What copies of an episode ended with.

    Attributes:
        costs: (k,) of each copy's plan, NaN without one: the best actions from each start, then
            what was drawn, then the rule's.
        plan: the plan of the least cost; None without one.
    """

    costs: Array
    plan: Any

    @property
    def cost(self) -> float:
        """The least cost; inf without a plan."""
        return float(np.nanmin(self.costs)) if np.isfinite(self.costs).any() else float("inf")


def decode(
    policy: Rater | None,
    game: Any,
    problem: Any,
    samples: int = 1,
    rule: bool = True,
    seed: int = 0,
) -> Decoded:
    """Play a problem by several copies, and return the best plan.

    The copies begin where the game may start otherwise, as far as it has such starts: the first
    from each plays by its best actions, others are drawn. With the copy that follows the heuristic
    from the problem's own start, the plan is never worse than the heuristic's. A copy that improves
    a plan ends when its own has not become better for ``PATIENCE`` steps.

    Args:
        policy: the policy; None plays the heuristic alone.
        game: of ``samples`` episodes, and one more with the heuristic; of one without a policy.
        problem: as the game's ``put`` takes it.
        samples: copies that the policy plays.
        rule: whether a copy plays the heuristic.
        seed: of sampling.
    """
    samples = samples if policy is not None else 0
    copies = samples + (rule or policy is None)
    rng = np.random.default_rng(seed)
    game.put(EVERY, problem)
    starts = game.restarts(problem, samples)
    for copy, start in enumerate(starts[1:], 1):
        game.put(np.array([copy]), start)
    game.start(EVERY)
    waited = np.zeros(copies, np.int64)
    while (part := np.flatnonzero(~game.over & (waited < PATIENCE))).size:
        rows = EVERY if part.size == copies else part
        seen = game.observation(rows)
        legal = seen["action_mask"] != 0
        actions = np.where(legal, seen["actions"][..., 0], -np.inf).argmax(axis=1)
        count = int((part < samples).sum())  # the heuristic's copy is the last
        if count and policy is not None:
            logits = policy.rate({name: values[:count] for name, values in seen.items()})
            is_best = (part[:count] < len(starts))[:, None]
            noise = np.where(is_best, 0.0, rng.gumbel(size=logits.shape))
            rated = np.nan_to_num(logits + noise)  # weights that are far too large rate nothing
            actions[:count] = np.where(legal[:count], rated, -np.inf).argmax(axis=1)
        before = game.cost[part]
        game.play(rows, actions)
        same = game.foreseen & (game.cost[part] >= before)
        waited[part] = np.where(same, waited[part] + 1, 0)
    costs = game.cost.copy()
    best = None if np.isnan(costs).all() else game.plan(int(np.nanargmin(costs)))
    return Decoded(costs, best)


def beam(policy: Rater, game: Any, problem: Any) -> Decoded:
    """Build a plan turn by turn, and return the best plan of all that were tried on the way.

    Behind each of the ``BEAMS`` best beginnings the ``BRANCHES`` likeliest actions are tried: the
    policy's best actions complete a plan behind each, and the beginnings of the shortest plans go
    on (simulation-guided beam search, arXiv 2207.06190).

    Args:
        policy: the policy.
        game: of ``BEAMS * BRANCHES`` episodes of a fixed length.
        problem: as the game's ``put`` takes it.
    """
    costs: list[Array] = []
    best, plan = np.inf, None
    game.put(EVERY, problem)

    def played(beginnings: list[list[int]]) -> None:
        # Episodes that are not needed repeat the first beginning.
        rows = beginnings + beginnings[:1] * (game.count - len(beginnings))
        game.start(EVERY)
        for actions in np.array(rows, np.int64).T:
            game.play(EVERY, np.ascontiguousarray(actions))

    beginnings: list[list[int]] = [[]]
    while True:
        played(beginnings)
        if game.over[0]:
            return Decoded(np.concatenate(costs), plan)
        logits = policy.rate(game.observation(np.arange(len(beginnings))))
        likeliest = np.argsort(-logits, axis=1, kind="stable")
        legal = np.take_along_axis(game.legal[: len(beginnings)], likeliest, axis=1)
        tried = BEAMS * BRANCHES // len(beginnings)
        branches = [
            [*beginning, action]
            for beginning, actions, can in zip(beginnings, likeliest, legal, strict=True)
            for action in actions[can][:tried].tolist()
        ]
        played(branches)
        rows = np.arange(len(branches))
        while (rows := rows[~game.over[rows]]).size:
            game.play(rows, policy.rate(game.observation(rows)).argmax(axis=1))
        cost = np.where(np.isnan(game.cost), np.inf, game.cost)[: len(branches)]
        order = np.argsort(cost, kind="stable")
        costs.append(game.cost[: len(branches)].copy())
        if cost[order[0]] < best:
            best, plan = cost[order[0]], game.plan(int(order[0]))
        beginnings = [branches[number] for number in order[:BEAMS].tolist()]


SAMPLES = 16
"""Plans of a problem by the network; one more is its rule's."""
BEAMS, BRANCHES = 8, 8
"""Beginnings of plans that ``beam`` goes on with, and actions that it tries behind each."""
COURSES = 32
"""Courses of a problem that is not foreseen, on which policies are compared."""


def _copies(game_class: Any, samples: int, rule: bool) -> int:
    return BEAMS * BRANCHES if game_class.fixed_length else samples + rule


def _decoded(
    policy: Rater, game: Any, problem: Any, samples: int, rule: bool, seed: int
) -> Decoded:
    """Decode by ``beam`` where episodes have a fixed length, else by ``decode``."""
    if game.fixed_length:
        return beam(policy, game, problem)
    return decode(policy, game, problem, samples, rule, seed)


def learned(env_id: str, problem: Any, seed: int = 0, **arguments: Any) -> Decoded:
    """Return the best plan of an environment's network for a problem; arguments are its game's.

    It is the best of ``SAMPLES`` plans and the heuristic's, or, where episodes have a fixed length,
    that of ``beam``.

    Raises:
        InfeasibleError: the problem is too large for the environment, or has no plan.
    """
    game_class = late(environments()[env_id])
    copies = _copies(game_class, SAMPLES, True)
    network = shipped(env_id)
    game = game_class(copies, problem=problem, **network.settings, **arguments)
    start = game.source.draw(Stream())
    decoded = _decoded(network, game, start, SAMPLES, True, seed)
    if decoded.plan is None:
        raise InfeasibleError(f"{game.instance(0)}: no episode of {env_id} ended with a plan")
    return decoded


def served(policy: Rater, env_id: str, name: str, family: str | None = None) -> Array:
    """Return shares of the best known costs of a set, of plans that are made as ``learned`` does.

    With uncertain outcomes there is one play of each of ``COURSES`` traces, without the heuristic's
    beside it. ``family`` None takes all problems.
    """
    from parenvs.core.sets import set_of

    game_class, played, stream = late(environments()[env_id]), set_of(name), Stream()
    samples, courses = (SAMPLES, 1) if game_class.foreseen else (1, COURSES)
    rule = game_class.foreseen
    game = game_class(_copies(game_class, samples, rule), rows=AHEAD, **played.env_kwargs(family))
    shares = np.zeros((len(played.of(family)), courses))
    for number, course in np.ndindex(shares.shape):
        stream.reseed(course)
        stream.number = number
        problem = game.source.draw(stream)
        decoded = _decoded(policy, game, problem, samples, rule, number)
        shares[number, course] = game.known[0] / decoded.cost
    return shares.mean(axis=1)
