"""``GameEnv`` and ``GameVectorEnv``: a game as a single and as a native vector environment."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from parenvs.compiled import Array
from parenvs.core.game import EVERY, Game, Stream, check_options
from parenvs.core.plan import Plan
from parenvs.errors import ParenvsError, refuse_unknown, shown
from parenvs.fields import Count, checked

RENDER_MODES = ["ansi", "rgb_array"]
"""Text, and pictures of shape (h, w, 3) uint8."""


def made(kind: type[Game], count: int, arguments: dict[str, Any]) -> Game:
    """Make a game of arguments that a user gave, checked by their types."""
    taken = [name for name in signature(kind.__init__).parameters if name not in ("self", "count")]
    for name in arguments:
        refuse_unknown(f"{kind.__name__} has no argument", name, taken)
    # What is loaded, and where it runs, is checked by what loads it.
    given = {name: x for name, x in arguments.items() if name not in ("instance", "cluster")}
    return kind(count, **{**arguments, **checked(kind.__init__, given)})


class GameEnv(gym.Env[dict[str, Any], np.int64]):
    """An environment whose episodes build a plan step by step; the class of a game specifies it.

    At every reset the info has ``action_mask``, (a,) int8, and ``instance``, the name of the
    problem; at the end of an episode it has ``instance`` again, and what ``Game.outcome`` tells. An
    action after the end changes nothing, pays ``Game.after_end``, and ends the episode again.

    Args:
        render_mode: ``"ansi"``, ``"rgb_array"`` or None.
        **arguments: of the game.

    Attributes:
        game: the game, of one episode.

    Raises:
        ValueError: the render mode is unknown.
    """

    game_class: ClassVar[type[Game]]

    def __init_subclass__(cls, game: type[Game] | None = None, **more: Any) -> None:
        """Take the specification from the game."""
        super().__init_subclass__(**more)
        if game is not None:
            cls.game_class, cls.__doc__ = game, game.documented()
            cls.metadata = {"render_modes": RENDER_MODES, "render_fps": game.render_fps}

    def __init__(self, *, render_mode: str | None = None, **arguments: Any) -> None:
        check_mode(render_mode)
        self.render_mode = render_mode
        self.game = made(self.game_class, 1, arguments)
        self.action_space = self.game.action_space
        self.observation_space = self.game.observation_space
        self._actions = int(self.action_space.n)
        self._streams = [Stream()]
        self.game.preview()

    @property  # type: ignore[misc]
    def np_random(self) -> np.random.Generator:
        """The generator that problems are drawn from."""
        return self._streams[0].rng

    @property
    def np_random_seed(self) -> int:
        """The seed of the generator."""
        return self._streams[0].seed

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode with nothing chosen.

        Args:
            seed: seed of what is drawn; without drawn problems it changes nothing.
            options: arguments of the environment for this episode; those that the class's
                docstring names.

        Raises:
            ParenvsError: an option is unknown or would change the spaces, or the environment
                refuses it; the episode before goes on then.
        """
        source = elsewhere(self.game, options)  # may refuse, so it comes before anything changes
        super().reset(seed=seed)
        if seed is not None:
            self._streams[0].reseed(seed)
            self._np_random = self.np_random  # Gymnasium's checker looks for it
        self.game.deal(EVERY, self._streams, source)
        return self._observation(), self._info(start=True)

    def step(
        self, action: int | np.int64
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take an action."""
        number, game = whole_number(action), self.game
        reward = game.after_end
        if not game.over[0]:
            # Numbers that no int64 holds are as illegal as the nearest illegal action.
            within = min(max(number, -1), self._actions)
            reward = float(game.play(EVERY, np.array([within]))[0])
        return self._observation(), reward, bool(game.over[0]), False, self._info()

    def action_masks(self) -> Array:
        """Return the legal actions, (a,) bool; all are true once the episode is over."""
        if self.game.over[0]:
            return np.ones(self._actions, np.bool_)
        return owned(self.game.legal)[0]

    def plan(self) -> Plan:
        """Return the plan built so far."""
        return self.game.plan(0)

    @property
    def problem(self) -> Any:
        """The problem of the episode."""
        return self.game.problem(0)

    @property
    def instance(self) -> str:
        """Name or path of the instance."""
        return self.game.instance(0)

    @property
    def draws(self) -> bool:
        """Whether episodes can be of different problems without ``options`` of ``reset``."""
        return self.game.draws

    @property
    def episode_steps(self) -> int:
        """Steps of the longest episode."""
        return self.game.episode_steps

    @property
    def largest_return(self) -> float:
        """An upper bound of the return, by which learners scale returns."""
        return self.game.largest_return

    def render(self) -> Any:
        """Render the plan built so far and its cost, as text or as an (h, w, 3) uint8 picture."""
        if self.render_mode is None:
            gym.logger.warn("render() needs render_mode='ansi' or 'rgb_array' in gym.make")
            return None
        return rendered(self.game, 0, self.render_mode)

    def close(self) -> None:
        """Close the game."""
        self.game.close()

    def _observation(self) -> dict[str, Any]:
        observed = self.game.observation(EVERY)
        return {key: owned(value)[0] for key, value in observed.items()}

    def _info(self, start: bool = False) -> dict[str, Any]:
        info: dict[str, Any] = {"action_mask": self.action_masks().view(np.int8)}
        over = bool(self.game.over[0])
        if start or over:
            info["instance"] = self.instance
        if over:
            for key, (value,) in self.game.outcome(EVERY).items():
                if value == value:  # not NaN
                    info[key] = float(value)
        return info


def elsewhere(game: Game, options: dict[str, Any] | None) -> Any:
    """Return the source of the problem that options of a reset name; None without options."""
    if not options:
        return None
    check_options(options, game.options)
    return game.elsewhere(options)


def owned(values: Array) -> Array:
    """Return an array that no later call changes: views are copied, see ``Game.observation``."""
    return values if values.base is None else values.copy()


def check_mode(mode: str | None) -> None:
    """Raise ``ParenvsError`` unless the render mode is known or None."""
    if mode is not None and mode not in RENDER_MODES:
        raise ParenvsError(f"render_mode must be one of {RENDER_MODES}, not {shown(mode)}")


def rendered(game: Game, row: int, mode: str) -> Any:
    """Render an episode in one of ``RENDER_MODES``."""
    from parenvs.view import rgb_array, text

    show: Any = text if mode == "ansi" else rgb_array
    return show(game.view(row), undecided=game.undecided(row))


def whole_number(action: Any) -> int:
    """Return an action as an integer, whole floats too; else raise ``ParenvsError``."""
    try:
        return operator.index(action)
    except TypeError:
        number = np.asarray(action).item() if np.size(action) == 1 else None
        if not isinstance(number, (int, float)) or number != number // 1:
            raise ParenvsError(f"action: expected a whole number, not {shown(action)}") from None
        return int(number)


# Python looks up a module's names faster than an Enum's members, and compares dtypes faster than
# types.
DISABLED, SAME_STEP = AutoresetMode.DISABLED, AutoresetMode.SAME_STEP
INT64 = np.dtype(np.int64)


class GameVectorEnv(gym.vector.VectorEnv[dict[str, Any], Array, Array]):
    """Plays n episodes at once, each as in the single environment, to the last bit.

    ``reset`` and ``step`` return what ``gymnasium.vector.SyncVectorEnv`` returns for n single
    environments: batched observations, rewards (n,) float64, both flags (n,) bool, and infos, each
    key with a mask, (n,) bool, under ``_key``: ``action_mask``, (n, a) int8, ``instance``, (n,)
    object, and at the end of an episode what ``Game.outcome`` tells, (n,) float64. In the mode
    ``SAME_STEP`` infos of ended episodes are in ``infos["final_info"]``. Environment i has a
    generator of its own, seeded with ``seed + i``, so drawn problems equal those of
    ``SyncVectorEnv``; a set that is played in its order is dealt out: environment i plays the
    problems i, i + n, and so on.

    ``gym.make_vec`` refuses ``wrappers`` and ``vector_kwargs`` for native batches: arguments of
    this class are given as plain keywords, and wrappers of single environments need
    ``vectorization_mode="sync"``.

    Args:
        num_envs: n.
        autoreset_mode: when an ended episode starts again: in the next step, whose action is
            ignored and whose reward is 0 (``NEXT_STEP``); in the same step, with the final
            observation in ``infos["final_obs"]`` (``SAME_STEP``); or by
            ``reset(options={"reset_mask": ...})`` (``DISABLED``).
        max_episode_steps: a limit of steps; only one that no episode reaches is taken.
        render_mode: ``"ansi"``, ``"rgb_array"`` or None.
        **arguments: of the game.

    Attributes:
        game: the game, of n episodes.

    Raises:
        ParenvsError: the game refuses its arguments, or the limit could be reached.
        ValueError: ``num_envs`` is less than 1, or a mode is unknown.
    """

    single: ClassVar[type[GameEnv]]
    game_class: ClassVar[type[Game]]

    def __init_subclass__(cls, single: type[GameEnv] | None = None, **more: Any) -> None:
        """Take the game of the single environment."""
        super().__init_subclass__(**more)
        if single is not None:
            cls.single, cls.game_class = single, single.game_class

    def __init__(
        self,
        num_envs: Count = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        max_episode_steps: int | None = None,
        render_mode: str | None = None,
        **arguments: Any,
    ) -> None:
        num_envs = checked(GameVectorEnv.__init__, {"num_envs": num_envs})["num_envs"]
        check_mode(render_mode)
        self.num_envs, self.render_mode = num_envs, render_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.game = game = made(self.game_class, num_envs, arguments)
        _keep_blocks(game.observation_space, num_envs)
        game.preview()
        self.episode_steps, self.largest_return = game.episode_steps, game.largest_return
        if max_episode_steps is not None and 0 < max_episode_steps < self.episode_steps:
            raise ParenvsError(
                f"max_episode_steps: episodes end by themselves after at most {self.episode_steps} "
                f"steps, and a native batch cuts none off after {max_episode_steps}; leave it out "
                'or give make_vec vectorization_mode="sync"'
            )
        self.metadata = {**self.single.metadata, "autoreset_mode": self.autoreset_mode}
        self.single_action_space = game.action_space
        self._actions = int(game.action_space.n)
        self.single_observation_space = game.observation_space
        self.action_space = batch_space(game.action_space, num_envs)
        self.observation_space = batch_space(game.observation_space, num_envs)
        # Copying an array that is the same in every step is faster than making it.
        self._all = np.ones(num_envs, np.bool_)
        self._none = np.zeros(num_envs, np.bool_)
        self._streams = [Stream(row, num_envs) for row in range(num_envs)]

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """The generator of each environment, as in ``SyncVectorEnv``."""
        return tuple(stream.rng for stream in self._streams)

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of each environment's generator."""
        return tuple(stream.seed for stream in self._streams)

    def count_as(self, first: int, total: int) -> None:
        """Deal out a set's problems as to the environments from ``first`` on of ``total``."""
        self._streams = [Stream(first + row, total) for row in range(self.num_envs)]

    @property
    def draws(self) -> bool:
        """Whether episodes can be of different problems without ``options`` of ``reset``."""
        return self.game.draws

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Restart all episodes, or those of ``options["reset_mask"]``, (n,) bool.

        Args:
            seed: a number, or one for each environment; only environments that draw problems use
                it.
            options: ``"reset_mask"``, and the options of the single environment, which apply to
                all episodes that restart.

        Raises:
            ParenvsError: the game refuses the options; no episode is restarted then.
            TypeError: the mask is no array of bool.
            ValueError: the mask or the seeds do not have length n, or the mask is all false.
        """
        options = dict(options or {})
        mask = options.pop("reset_mask", self._all)
        if not isinstance(mask, Array) or mask.dtype != np.bool_:
            raise TypeError(
                f"'reset_mask' must be a NumPy array of bool, not {type(mask).__name__}"
            )
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f"'reset_mask' must have the shape ({self.num_envs},), and a true element"
            )
        rows = EVERY if mask.all() else np.flatnonzero(mask)
        seeds = seeds_of(seed, self.num_envs)
        source = elsewhere(self.game, options)
        indices = np.arange(self.num_envs)[rows]
        for row in indices.tolist():
            number = seeds[row]
            if number is not None:
                self._streams[row].reseed(number)
        self.game.deal(rows, self._streams, source)
        infos = self._infos()
        # As Gymnasium's batches do it, infos of environments that go on are zeros without a mask.
        infos["action_mask"][~mask] = 0
        infos["_action_mask"] = mask.copy()
        self._name(infos, indices)
        return self._observation(EVERY), infos

    def step(
        self, actions: Array | Sequence[int]
    ) -> tuple[dict[str, Any], Array, Array, Array, dict[str, Any]]:
        """Play one action in every environment.

        Args:
            actions: (n,) whole numbers, actions of the single environment.

        Raises:
            AssertionError: an episode is over, and the autoreset mode is ``DISABLED``.
            ParenvsError: an action is no whole number.
            ValueError: there are not n actions.
        """
        checked, game = self._checked_actions(actions), self.game
        before = game.over.nonzero()[0]  # none in the mode SAME_STEP
        if before.size and self.autoreset_mode is DISABLED:
            raise AssertionError(f"episodes {before.tolist()} are over: reset them by 'reset_mask'")
        if not before.size:
            rewards = game.play(EVERY, checked)
            terminated = game.over.copy()
        else:
            rewards, terminated = np.zeros(self.num_envs), self._none.copy()
            rows = (~game.over).nonzero()[0]
            if rows.size:
                rewards[rows] = game.play(rows, checked[rows])
                terminated[rows] = game.over[rows]
            game.deal(EVERY if before.size == self.num_envs else before, self._streams)
        ended, begun = terminated.nonzero()[0], before
        infos: dict[str, Any] = {}
        if ended.size:
            infos = self._closing(ended)
            if self.autoreset_mode is SAME_STEP:
                final = self._final_infos(ended, terminated)
                final["final_info"].update(infos)
                infos, begun = final, ended
                game.deal(EVERY if ended.size == self.num_envs else ended, self._streams)
        # Masks come last: those of environments that began anew are of their new episodes.
        infos = {**infos, **self._infos()}
        if begun.size:
            self._name(infos, begun)
        return self._observation(EVERY), rewards, terminated, self._none.copy(), infos

    def action_masks(self) -> Array:
        """Return the legal actions, (n, a) bool; a row is all true where the episode is over."""
        masks, over = owned(self.game.legal), self.game.over
        if np.count_nonzero(over):  # faster than any()
            masks[over] = True
        return masks

    def render(self) -> tuple[Any, ...] | None:
        """Render each environment as the single environment's ``render`` does."""
        mode = self.render_mode
        if mode is None:
            gym.logger.warn("render() needs render_mode='ansi' or 'rgb_array' in gym.make_vec")
            return None
        return tuple(rendered(self.game, row, mode) for row in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the game."""
        self.game.close()

    def plan(self, index: int) -> Any:
        """Return the plan that environment ``index`` has built so far, as the single one does."""
        return self.game.plan(range(self.num_envs)[index])

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return a method's results, or an attribute, of each environment.

        Methods are ``"action_masks"``, ``"plan"`` and ``"render"``, without arguments; for
        attributes see ``get_attr``. Others raise ``AttributeError``, arguments ``TypeError``.
        """
        methods: dict[str, Callable[[], Any]] = {
            "action_masks": lambda: tuple(self.action_masks()),
            "plan": lambda: tuple(self.plan(row) for row in range(self.num_envs)),
            "render": lambda: self.render() or (None,) * self.num_envs,
        }
        if args or kwargs:
            raise TypeError(f"{name}() takes no arguments in a native batch")
        return methods[name]() if name in methods else self.get_attr(name)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment; ``AttributeError`` if there is none.

        It is ``"instance"`` or ``"problem"``, or one that all share, such as ``"draws"``.
        """
        if name in OWN:
            return tuple(getattr(self.game, name)(row) for row in range(self.num_envs))
        if name in SHARED:
            return (getattr(self, name),) * self.num_envs
        raise AttributeError(
            f"environments of a native batch have no {name!r}; known: {', '.join((*OWN, *SHARED))}"
        )

    def set_attr(self, name: str, values: Any) -> None:
        """Refuse: environments of a native batch share their attributes."""
        raise AttributeError(
            f"environments of a native batch share {name!r}, which cannot be set; make another "
            'batch, or give make_vec vectorization_mode="sync"'
        )

    def _checked_actions(self, actions: Array | Sequence[int]) -> Array:
        checked = np.asarray(actions)
        if checked.shape != (self.num_envs,):
            raise ValueError(f"{self.num_envs} actions are needed, not shape {checked.shape}")
        if checked.dtype != INT64:
            if checked.dtype.kind not in "iub":
                # Clipped as integers, since large floats have no int64.
                numbers = [whole_number(x) for x in checked]
                checked = np.array([min(max(x, -1), self._actions) for x in numbers])
            checked = checked.astype(np.int64)
        return checked

    def _infos(self) -> dict[str, Any]:
        masks = self.action_masks().view(np.int8)
        return {"action_mask": masks, "_action_mask": self._all.copy()}

    def _observation(self, rows: Any) -> dict[str, Any]:
        return {key: owned(value) for key, value in self.game.observation(rows).items()}

    def _name(self, infos: dict[str, Any], rows: Array) -> None:
        if "instance" not in infos:
            infos["instance"] = np.full(self.num_envs, None, object)
            infos["_instance"] = self._none.copy()
        infos["instance"][rows] = self.game.instances(rows)
        infos["_instance"][rows] = True

    def _closing(self, rows: Array) -> dict[str, Any]:
        infos: dict[str, Any] = {}
        self._name(infos, rows)
        for key, values in self.game.outcome(rows).items():
            known = (values == values).nonzero()[0]  # not NaN
            if known.size:
                infos[key], infos[f"_{key}"] = np.zeros(self.num_envs), self._none.copy()
                infos[key][rows[known]] = values[known]
                infos[f"_{key}"][rows[known]] = True
        return infos

    def _final_infos(self, rows: Array, over: Array) -> dict[str, Any]:
        final = np.full(self.num_envs, None, object)
        batched = self._observation(rows)
        for index, row in enumerate(rows.tolist()):
            final[row] = {key: value[index] for key, value in batched.items()}
        # Once an episode is over, all of its actions count as legal; see ``action_masks``.
        mask = np.repeat(over[:, None], self._actions, axis=1).view(np.int8)
        info = {"action_mask": mask, "_action_mask": over.copy()}
        return {
            "final_obs": final, "_final_obs": over.copy(),
            "final_info": info, "_final_info": over.copy(),
        }  # fmt: skip


OWN = ("instance", "problem")
"""Attributes of single environments that belong to their problem."""
SHARED = ("draws", "episode_steps", "largest_return", "render_mode", "metadata", "spec")
"""Attributes of single environments that all of a batch share."""


def seeds_of(seed: int | Sequence[int | None] | None, count: int) -> list[int | None]:
    """Return ``count`` seeds; None keeps an environment's generator.

    A number seeds the first environment, and its successors seed the next.

    Raises:
        ValueError: the number of seeds is not ``count``.
        gymnasium.error.Error: a seed is negative or not a whole number.
    """
    if isinstance(seed, int):
        np_random(seed)  # raises an error for a negative seed
        return list(range(seed, seed + count))
    seeds: list[int | None] = [None] * count if seed is None else list(seed)
    if len(seeds) != count:
        raise ValueError(f"{count} seeds are needed, not {len(seeds)}")
    for number in seeds:
        if number is not None and (not isinstance(number, int) or number < 0):
            np_random(number)  # raises an error
    return seeds


def _keep_blocks(space: gym.spaces.Dict, count: int) -> None:
    """Make malloc keep blocks of the size of the largest part of n observations.

    Malloc keeps blocks of a size once one was freed. Otherwise every array of observations costs
    page faults, which take longer than filling it. The block allocated here is never written.
    """
    largest = max(np.zeros(part.shape or (), part.dtype).nbytes for part in space.values())
    np.empty(min(max(4 * count * largest, 1 << 21), 30 << 20), np.uint8)


Rows = dict[str, Array]


class ParallelVectorEnv(gym.vector.VectorEnv[Any, Any, Any]):
    """Environments of several agents each, a row for every agent.

    All rows have one space: observations are flat and padded behind, followed by which agent it is
    (``context``); ``action_mask`` has the legal actions, padded; where all agents have rows of
    actions (``actions``, see ``parenvs.core.game``) so have the rows here. ``joint`` is what all
    agents of the environment see, for a central critic. An agent that has left waits, paid 0, with
    action 0, for the end of the episode; it ends for all rows at once.

    Args:
        make: makes an environment; ``parallel_env`` of a module of PettingZoo.
        num_envs: how many.
        autoreset_mode: ``SAME_STEP``.
        **arguments: of ``make``.

    Raises:
        ParenvsError: an agent's actions are not discrete, or the mode is another one.
    """

    def __init__(
        self,
        make: Callable[..., Any],
        num_envs: int = 1,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        **arguments: Any,
    ) -> None:
        if autoreset_mode != AutoresetMode.SAME_STEP:
            raise ParenvsError(f"agents start again in the same step, not by {autoreset_mode}")
        self.envs = [make(**arguments) for _ in range(num_envs)]
        sample = self.envs[0]
        self.names: list[str] = list(sample.possible_agents)
        seen = [sample.observation_space(name) for name in self.names]
        self._acting: list[Any] = [sample.action_space(name) for name in self.names]
        for name, space in zip(self.names, self._acting, strict=True):
            if not isinstance(space, spaces.Discrete):
                raise ParenvsError(f"actions of {name} must be Discrete, not {shown(space)}")
        self._parts = [_parts(space) for space in seen]
        self.rowed = all(_is_rowed(space) for space in seen)
        flat = max(sum(map(spaces.flatdim, parts.values())) for parts in self._parts)
        features = seen[0]["actions"].shape[1] if self.rowed else 0
        actions, agents = max(int(space.n) for space in self._acting), len(self.names)
        self._shapes: dict[str, tuple[int, ...]] = {
            "context": (flat + agents,),
            "action_mask": (actions,),
            "joint": ((flat + 2 * features) * agents,),
        }
        if self.rowed:
            self._shapes["actions"] = (actions, features)
        boxes = {k: spaces.Box(-np.inf, np.inf, x, np.float32) for k, x in self._shapes.items()}
        self.single_observation_space = spaces.Dict({**boxes})
        self.single_action_space = spaces.Discrete(actions)
        self.num_envs = num_envs * agents
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {**sample.metadata, "autoreset_mode": autoreset_mode}

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Rows, dict[str, Any]]:
        """Start all episodes anew.

        ``seed`` is of the first environment, whose successors have the next numbers, or one of each
        row, of which those of first agents count.
        """
        if seed is not None and not isinstance(seed, int):
            seed = [int(number) for number in seed[:: len(self.names)]]
        seeds = seeds_of(seed, len(self.envs))
        starts = [
            env.reset(seed=number, options=options)
            for env, number in zip(self.envs, seeds, strict=True)
        ]
        return _stacked([self._rows(*start) for start in starts]), {}

    def step(self, actions: Array) -> tuple[Rows, Array, Array, Array, dict[str, Any]]:
        """Take a step in each environment by the actions of its agents, (n,)."""
        count, rows = self.num_envs, []
        paid, terminated, truncated = np.zeros(count), np.zeros(count, bool), np.zeros(count, bool)
        final = np.full(count, None, object)
        for number, env in enumerate(self.envs):
            places = [number * len(self.names) + index for index in range(len(self.names))]
            chosen = {
                name: int(actions[place] + space.start)
                for name, place, space in zip(self.names, places, self._acting, strict=True)
                if name in env.agents
            }
            seen, rewards, ended, cut, infos = env.step(chosen)
            paid[places] = [rewards.get(name, 0.0) for name in self.names]
            # Who has left waits, unless the episode ends for all: then its last view counts.
            there = env.agents or seen
            last = self._rows({name: seen[name] for name in seen if name in there}, infos)
            if not env.agents:
                is_cut = np.array([bool(cut.get(x)) and not ended.get(x) for x in self.names])
                truncated[places], terminated[places] = is_cut, ~is_cut
                for index, place in enumerate(places):
                    final[place] = {key: values[index] for key, values in last.items()}
                last = self._rows(*env.reset())
            rows.append(last)
        over = terminated | truncated
        infos = {"final_obs": final, "_final_obs": over} if over.any() else {}
        return _stacked(rows), paid, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Close all environments."""
        for env in self.envs:
            env.close()

    def _rows(self, seen: Mapping[str, Any], infos: Mapping[str, Any]) -> Rows:
        agents = len(self.names)
        result: Rows = {
            name: np.zeros((agents, *shape), np.float32) for name, shape in self._shapes.items()
        }
        for index, name in enumerate(self.names):
            context, mask = result["context"][index], result["action_mask"][index]
            context[index - agents] = 1.0
            if name not in seen:
                mask[0] = 1.0
                continue
            observed = seen[name] if isinstance(seen[name], Mapping) else {"": seen[name]}
            parts = self._parts[index].items()
            values = [spaces.flatten(part, observed[key]) for key, part in parts]
            flat = np.concatenate([[], *values])
            context[: len(flat)] = flat
            count = self._acting[index].n
            mask[:count] = observed.get("action_mask", infos.get(name, {}).get("action_mask", 1))
            if self.rowed:
                result["actions"][index, :count] = observed["actions"]
        joint = [result["context"][:, :-agents]]
        if self.rowed:
            legal, rows = result["action_mask"][..., None] > 0, result["actions"]
            top = np.where(legal, rows, -np.inf).max(axis=1)
            mean = (rows * legal).sum(axis=1) / legal.sum(axis=1)
            joint += [mean, np.where(top > -np.inf, top, 0)]
        result["joint"][:] = np.concatenate(joint, axis=1).ravel()
        return result


def _parts(space: Any) -> dict[str, Any]:
    if not isinstance(space, spaces.Dict):
        return {"": space}
    left = ("action_mask", "actions") if _is_rowed(space) else ("action_mask",)
    return {name: part for name, part in space.items() if name not in left}


def _is_rowed(space: Any) -> bool:
    return isinstance(space, spaces.Dict) and {"actions", "context", "action_mask"} <= set(space)


def _stacked(rows: Sequence[Rows]) -> Rows:
    return {name: np.concatenate([each[name] for each in rows]) for name in rows[0]}
