"""``HybridPlan-v0``: plan data, tensor and pipeline parallelism together, stage by stage."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from parenvs.core.game import Game, Rows, with_regret
from parenvs.core.plan import ILLEGAL
from parenvs.core.source import ORDERS, Fixed, Source
from parenvs.envs.env import GameEnv
from parenvs.envs.vector import GameVectorEnv
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.tasks.hybrid.plan import HybridPlan as Plan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.report import HybridReport
from parenvs.tasks.hybrid.turns import rules
from parenvs.tasks.hybrid.turns.actions import (
    ACTIONS,
    AGENT_SIZES,
    AGENTS,
    GLOBAL,
    SERVERS,
    STAGE_LAYERS,
    TURNS,
)
from parenvs.tasks.hybrid.turns.board import Board
from parenvs.tasks.hybrid.turns.episodes import MASKS, Episodes
from parenvs.tasks.hybrid.turns.observe import SHAPES
from parenvs.tasks.hybrid.turns.problems import POOL, Setting, named, source_of
from parenvs.tasks.hybrid.turns.slots import Slots


class HybridPlan(Game):
    """Plan the training of a transformer along all axes together.

    ## Description
    The plan is made turn by turn. The first turn chooses, for the whole plan, the samples of a
    micro-batch in one replica, the number of chunks (interleaving), and sequence parallelism. Then
    every stage takes four turns, from the first stage to the last: its last layer, its devices, the
    ranks that share its matrices (tp; the replicas follow), and what its replicas share (ZeRO) and
    its backward pass recomputes. With ``server_order="free"`` a stage also says which server comes
    next, for each one that it begins. When a stage reaches the end of the chain, the judge computes
    the seconds of a training step and the bytes on every device
    (``parenvs.tasks.hybrid.formulas``).

    ``parenvs.envs.hybrid_v0`` is the same for three agents that take turns
    (``parenvs.tasks.hybrid.three_agents``).

    ## Action Space
    ``Discrete(261)``; each turn has a range of its own. ``info["action_mask"]`` (int8) and
    ``action_masks()`` (bool) leave those of this turn that are legal.

    * 0 to 39: micro-batch of 1, 2, 4, 8, 16 x chunks 1, 2, 4, 8 x sequence parallelism off, on.
    * 40 to 55: ZeRO 0 to 3 x recompute nothing, attention, everything, as few layers as fit.
    * 56 to 183: last layer of the stage in the first chunk, other chunks follow with the same size;
      183 is "to the end".
    * 184 to 192: 1, 2, 4, ..., 128 devices, or all that are left.
    * 193 to 256: the server that comes next.
    * 257 to 260: tp 1, 2, 4, 8.

    ## Observation Space
    ``Dict`` of float32 in [0, 1]; n layers, D devices:

    * ``chain``: (128, 6), a row for each layer: seconds up to its end, parameters up to its end,
      as shares of the chain's; bytes that it keeps of a sample if it recomputes nothing, its
      attention, everything, as shares of the most; elements passed to the next layer, likewise.
    * ``cluster``: (64, 4), a row for each server: speed, as a share of the fastest; bytes of a
      device / 256e9; x / (1 + x) for its network's bytes/s over 50e9; share of its devices in use.
    * ``numbers``: (18,): n / 128; log2 D / 9; log2 of servers / 6; log2 of the batch / 13; whether
      tp 2, 4, 8 are possible; whether sequence parallelism is; x / (1 + x) for bytes of weights and
      states over the cluster's memory, and for what a sample keeps over a device's; what attention
      and full recomputation leave of that; the head's share of the seconds; embedding's and head's
      share of the parameters; x / (1 + x) for seconds over those of computation: of the gradients'
      all-reduce, of tensor parallelism's collectives at the largest tp, of a send; of starting
      kernels.
    * ``stages``: (64, 10), a row for each stage so far: its end / layers of a chunk, its layers
      likewise, log2 of devices / 9, devices / D, log2 tp / 3, log2 of replicas / 9, ZeRO / 3,
      mode / 3, speed of its slowest server, x / (1 + x) for its share of the work over its share of
      the devices and their speed.
    * ``progress``: (8,): log2 of the micro-batch / 4, log2 of chunks / 3, sequence parallelism,
      log2 of the micro-batches / 13, stages / 64, layers left, devices left, log2 of the samples of
      a micro-batch / 13.
    * ``turn``: (6,), 1 for the turn: global, layers, devices, server, tp, data; 0 at the end.

    ## Rewards
    0 on every turn but the last. The last pays B / L, where L is the length of a step and B a bound
    that no plan beats: all devices do matrix products at their peak all the time. It lies in (0, 1]
    and reads as utilisation. It pays -1 if a device holds more bytes than 90 % of its memory. An
    illegal action pays -1 and ends the episode.

    ## Starting State
    Nothing is chosen; the problem is one that ``reset`` draws, or the one that arguments name. If
    no plan of that one fits the memory, the constructor warns.

    ## Episode End
    When a stage reaches the end of the chain, or after an illegal action. No truncation.

    ## Arguments
    * ``instance``: a generator (``"hybrid"``, the default; ``"hetero-8"`` to ``"hetero-64"``, for
      servers of different speed), a set (``"hybrid-test"``, ``"hetero-32-validation"``), one
      problem of either (``"hybrid/7"``, ``"hybrid-test/llama-003"``), or a shape's or a graph's
      name or path.
    * ``cluster``, ``batch``, ``stack``, ``precision``: of named shapes and graphs, see
      ``parenvs.problem``; the others have their own. ``cluster="hetero"`` means ``"hetero-32"``.
    * ``mask``: ``"legal"`` leaves what some well-formed plan begins with; ``"completable"`` what
      some plan that fits the memory begins with (exact, and slower).
    * ``server_order``: ``"fixed"`` or ``"free"``, whether plans choose the order of servers.
    * ``stage_devices``: devices of every stage; None lets plans choose, 0 means a whole server.
    * ``most_chunks``: 1, 2, 4 or 8. Hetero problems have ``server_order="free"``,
      ``stage_devices=0`` and ``most_chunks=1`` unless something else is given.
    * ``pool``: problems of a generator that are drawn, ``hybrid/0`` to ``hybrid/2047``.
    * ``family``: problems of a set or a generator of this family only.
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set, or a generator's pool, in its
      order, each problem once, and then again; a seed begins it anew. In a batch of n environment i
      plays the problems i, i + n, and so on. ``"fixed"`` and ``"free"`` are short for
      ``server_order``, with problems at random.
    * ``problem``: a ``parenvs.Hybrid``, in place of instance and settings.

    ## Infos
    ``action_mask``; at a reset and at the end ``instance``; at the end of a plan ``length_seconds``
    of a training step and ``excess_bytes``, by which the fullest device exceeds its limit (<= 0: it
    fits); at the end on a problem of a set whose optimum is proven (over all plans, whatever the
    arguments allow) ``optimum``, the return of the best plan, and ``regret``, the share of it that
    the return falls short of (1 for illegal actions).

    ## Many at Once
    ``gym.make_vec("HybridPlan-v0", num_envs=64)``, see ``parenvs.envs.vector.GameVectorEnv``. A
    problem that is drawn for the first time is looked up first, which takes as long as thousands of
    steps; of a generator's ``pool`` all are known after a while. With ``mask="completable"`` masks
    are made episode by episode.

    ## Version History
    * v0: first version.
    """

    options = ("instance", "cluster", "batch", "stack", "precision")
    agents: ClassVar[dict[str, int]] = dict(zip(AGENTS, AGENT_SIZES, strict=True))

    def __init__(
        self,
        count: int = 1,
        *,
        instance: Any = None,
        cluster: Any = None,
        batch: int | None = None,
        stack: Any = None,
        precision: str | None = None,
        mask: str = MASKS[0],
        server_order: str | None = None,
        stage_devices: int | None = None,
        most_chunks: int | None = None,
        pool: int = POOL,
        family: str | None = None,
        order: str = ORDERS[0],
        problem: Hybrid | None = None,
    ) -> None:
        """Find the source of problems; see the class for the arguments."""
        super().__init__(count)
        if mask not in MASKS:
            raise ParenvsError(
                f"mask must be one of {', '.join(MASKS)}, not {shown(mask)}"
                f"{did_you_mean(str(mask), MASKS)}"
            )
        order, server_order = _orders_of(order, server_order)
        self.rules = rules.rules_of(instance, cluster, server_order, stage_devices, most_chunks)
        settings = {"batch": batch, "stack": stack, "precision": precision}
        self._settings = {key: value for key, value in settings.items() if value is not None}
        self.source = source_of(
            self.rules, instance, cluster, pool, order, family, problem, **self._settings
        )
        only: Setting | None = self.source.only
        if only is not None and not only.completable.has_plan:
            name = f"{only.problem.instance} on {only.problem.cluster}"
            warnings.warn(f"no plan fits the memory: {name}", stacklevel=2)
        self.action_space = spaces.Discrete(ACTIONS)
        self.observation_space = spaces.Dict(
            {key: spaces.Box(0.0, 1.0, shape, np.float32) for key, shape in SHAPES.items()}
        )
        self.episodes = Episodes(count, Slots(self.rules), mask)
        self.board = Board(self.episodes)
        self.over = self.episodes.over

    @property
    def legal(self) -> np.ndarray:
        """See ``Game.legal``."""
        return self.episodes.legal

    def put(self, rows: Rows, problem: Setting) -> None:
        """See ``Game.put``."""
        self.episodes.put(self._rows[rows], problem)

    def start(self, rows: Rows) -> None:
        """See ``Game.start``: nothing is chosen."""
        self.episodes.start(self._rows[rows])

    def play(self, rows: Rows, actions: np.ndarray) -> np.ndarray:
        """See ``Game.play``: take a turn in each episode."""
        return self.episodes.play(self._rows[rows], self.within(actions))

    def observation(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.observation``."""
        return self.board.observation(rows)

    def outcome(self, rows: Rows) -> dict[str, np.ndarray]:
        """See ``Game.outcome``: ``length_seconds`` and ``excess_bytes`` of complete plans."""
        episodes = self.episodes
        values = np.where(episodes.complete[rows], episodes.value[rows], ILLEGAL)
        figures = {"length_seconds": episodes.length[rows], "excess_bytes": episodes.excess[rows]}
        optimum = episodes.slots.arrays["optimum"][episodes.slot[rows]]
        return with_regret(figures, values, optimum)

    def plan(self, row: int) -> Plan:
        """See ``Game.plan``; what is open is filled in, see ``Episodes.plan``."""
        return self.episodes.plan(row)

    def problem(self, row: int) -> Hybrid:
        """See ``Game.problem``."""
        return self.episodes.setting(row).problem

    def view(self, row: int) -> HybridReport | Hybrid:
        """See ``Game.view``: the problem, until the end of a first stage is chosen."""
        begun = self.episodes.made[row] or self.episodes.turn[row] not in (GLOBAL, STAGE_LAYERS)
        return self.problem(row).report(self.plan(row)) if begun else self.problem(row)

    @property
    def episode_steps(self) -> int:
        """Largest number of steps of an episode."""
        return 1 + (len(TURNS) - 1) * SERVERS

    def elsewhere(self, options: dict[str, Any]) -> Source:
        """See ``Game.elsewhere``."""
        if "instance" not in options:
            raise ParenvsError("options: give 'instance' with its settings")
        settings = {**self._settings, **options}
        return Fixed(named(self.rules, **{key: x for key, x in settings.items() if x is not None}))


class HybridPlanEnv(GameEnv, game=HybridPlan):
    """A single environment of ``HybridPlan``."""


class HybridPlanVectorEnv(GameVectorEnv, single=HybridPlanEnv):
    """A native batch of ``HybridPlan``."""


def _orders_of(order: str, server_order: str | None) -> tuple[str, str | None]:
    """Return who plays when, and who orders servers, of arguments of which the first may say both.

    Raises:
        ParenvsError: the two contradict each other.
    """
    if order not in rules.ORDERS:
        return order, server_order
    if server_order not in (None, order):
        raise ParenvsError(f"order {order!r} means server_order, which is {shown(server_order)}")
    return ORDERS[0], order
