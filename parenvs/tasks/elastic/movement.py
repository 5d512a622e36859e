"""What moves when one plan replaces another: which slice goes from which rank to which.

A rank is ``r = t + T (d + D p)`` for tensor, pipeline and data degrees T, P, D; consecutive ranks
share a host. Shard t of T and shard t' of T' of n elements of b bytes have
``max(0, min((t+1)/T, (t'+1)/T') - max(t/T, t'/T')) n b`` bytes in common (``overlap``). Tensors
that are not split count whole.

In ``minimal`` and ``flows`` the contents of devices stay, and replicas to read from and hosts of
the new ranks are chosen so that little is sent. In ``fetched`` every rank of the new plan fetches
its whole shard from replica 0 of the old one (Tenplex, SOSP 2024).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from parenvs.compiled import Array
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.graph.graph import Graph
from parenvs.tasks.hybrid.layers import Layer, Split
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.schedules import CHUNKS
from parenvs.tasks.hybrid.uniform import even_bounds

BYTES = 14.0
"""Bytes of a parameter with its optimizer state, in half precision with Adam."""


@dataclass(frozen=True)
class State:
    """The state of a chain of n layers, embedding and head among them.

    Attributes:
        split: (n,) bytes that tensor parallelism divides.
        whole: (n,) bytes that every tensor-parallel rank holds: norms, positions, some biases.
        inner: layers without embedding and head, which are what is dealt out to stages.
    """

    name: str
    split: Array
    whole: Array
    inner: int

    @property
    def bytes(self) -> float:
        """Bytes of one copy of the state."""
        return float(self.split.sum() + self.whole.sum())

    def bounds(self, stages: int) -> Array:
        """(P+1,) first layer of each stage; the first also has the embedding, the last the head.

        Layers are dealt out by ``even_bounds``: where their number does not divide, the first and
        the last stage have fewer, in place of embedding and head.
        """
        result = even_bounds(self.inner, stages) + 1
        result[0], result[-1] = 0, len(self.split)
        return result

    @classmethod
    def of(cls, model: HybridModel, per_parameter: float = BYTES) -> State:
        """Return the state of a model.

        What divides is what a rank of two has less than a rank of one (``Layer.parameters``).
        """
        ends = (model.embedding, model.head)
        kinds = [_divided(kind) for kind in model.kinds]
        chain = [kinds[kind] for kind in model.kind_of]
        first, last = (_divided(layer) if layer is not None else (0.0, 0.0) for layer in ends)
        split, whole = np.array([first, *chain, last]).T * per_parameter
        return cls(model.name, split, whole, len(model))


def _divided(layer: Layer) -> tuple[float, float]:
    # Of p parameters w are whole: a rank of one has p, a rank of two w + (p - w) / 2.
    whole, halved = (sum(map(float, layer.parameters(Split(ranks, 1.0)))) for ranks in (1, 2))
    return 2.0 * (whole - halved), 2.0 * halved - whole


class Degrees(NamedTuple):
    """Degrees of a plan: T tensor, P pipeline, D data."""

    tensor: int
    pipeline: int
    data: int

    @property
    def ranks(self) -> int:
        """Devices of the plan."""
        return self.tensor * self.pipeline * self.data

    def hosts(self, devices: int) -> int:
        """Hosts of so many devices that the plan takes."""
        return -(-self.ranks // devices)

    def __str__(self) -> str:
        """Return the degrees as text."""
        return f"T{self.tensor} P{self.pipeline} D{self.data}"


@dataclass(frozen=True)
class Movement:
    """The bytes that a change of plans moves.

    Attributes:
        bytes: all bytes that a rank fetches from another one, or all that it fetches (``fetched``).
        network_bytes: those that cross the network.
        egress_bytes: most that a host sends.
        sliced_bytes: those that are cut out of larger shards or put together from smaller ones.
    """

    bytes: float
    network_bytes: float
    egress_bytes: float
    sliced_bytes: float


def overlap(shard: Any, shards: int, other_shard: Any, other_shards: int) -> Any:
    """Return the share of a tensor that two shards, of two degrees, have in common; elementwise."""
    begin = np.maximum(shard / shards, other_shard / other_shards)
    end = np.minimum((shard + 1) / shards, (other_shard + 1) / other_shards)
    return np.maximum(0.0, end - begin)


def slices(
    state: State, old: Degrees, new: Degrees, within: tuple[Array, Array] | None = None
) -> Array:
    """Return the bytes that each new shard takes of each old one, (P T, P' T').

    A tensor that is not split is taken from the first shard that a new one overlaps.

    Args:
        state: the model's.
        old: degrees that the state is laid out for.
        new: degrees that it is wanted for.
        within: (P, n) and (P', n) 1 where a layer is in a stage (default: dealt out evenly).
    """
    grid = overlap(np.arange(old.tensor)[:, None], old.tensor, np.arange(new.tensor), new.tensor)
    # Whole tensors are on all shards; reading the first one avoids counting them twice.
    first = np.eye(old.tensor)[(grid > 0).argmax(axis=0)].T
    before, after = within or (_within(state, degrees.pipeline) for degrees in (old, new))
    split = (before * state.split) @ after.T
    whole = (before * state.whole) @ after.T
    shares = split[:, None, :, None] * grid[:, None] + whole[:, None, :, None] * first[:, None]
    return shares.reshape(old.pipeline * old.tensor, new.pipeline * new.tensor)


def fetched(state: State, old: Degrees, new: Degrees, devices: int = 4) -> Movement:
    """Return what moves if every new rank fetches its whole shard from replica 0 of the old plan.

    Both plans are on the hosts, of so many devices, from number 0 on.
    """
    size = slices(state, old, new)
    shard, target = np.arange(len(size)), np.arange(new.ranks)
    tensor_rank, stage = shard % old.tensor, shard // old.tensor
    source = (tensor_rank + old.tensor * old.data * stage) // devices
    # Replicas of the data dimension want the same shard of their stage.
    shard_of_rank = target % new.tensor + new.tensor * (target // (new.tensor * new.data))
    fetched_bytes = size[:, shard_of_rank]  # (units, ranks)
    remote = fetched_bytes * (source[:, None] != target // devices)
    sliced = 0.0
    if old.tensor != new.tensor:
        # What tensor parallelism divides in each stage, of each shard.
        by_stage = _within(state, new.pipeline) @ state.split / new.tensor
        sliced = float(np.repeat(by_stage, new.tensor)[shard_of_rank].sum())
    egress = np.bincount(source, remote.sum(axis=1)).max()
    return Movement(float(fetched_bytes.sum()), float(remote.sum()), float(egress), sliced)


class Layout(NamedTuple):
    """The atoms (``atom_bytes``) of the state on each device of a plan.

    Attributes:
        grid: parts of what is split.
        held: (hosts * devices, A) bool, atoms of each device.
        asked: (hosts, A) float32, devices of each host that hold an atom.
    """

    degrees: Degrees
    devices: int
    grid: int
    held: Array
    asked: Array

    @property
    def hosts(self) -> int:
        """Hosts that the plan takes."""
        return len(self.asked)

    @classmethod
    def of(cls, state: State, degrees: Degrees, grid: int, devices: int) -> Layout:
        """Return the layout of degrees, whose T divides the grid."""
        hosts, tensor = degrees.hosts(devices), degrees.tensor
        layers = _within(state, degrees.pipeline) > 0
        # Shard t of T has the t-th of T equal runs of the grid's parts, (T, grid).
        parts = np.repeat(np.eye(tensor, dtype=bool), grid // tensor, axis=1)
        split = layers[:, None, :, None] & parts[None, :, None, :]
        whole = np.broadcast_to(layers[:, None], (len(layers), tensor, layers.shape[1]))
        shards = np.concatenate([split.reshape(*split.shape[:2], -1), whole], axis=2)
        held = np.zeros((hosts * devices, shards.shape[2]), bool)
        # Ranks count stages, in them replicas, in these shards.
        ranks = np.repeat(shards, degrees.data, axis=0)
        held[: degrees.ranks] = ranks.reshape(degrees.ranks, -1)
        asked = held.reshape(hosts, devices, -1).sum(axis=1, dtype=np.float32)
        return cls(degrees, devices, grid, held, asked)

    def contents(self, hosts: int, lost: Sequence[int] = ()) -> Array:
        """Return the atoms on each device, (hosts, devices, A) bool.

        Args:
            hosts: number of hosts, of which the plan takes the first.
            lost: hosts that have left, in whose place new ones hold nothing.
        """
        result = np.zeros((hosts, self.devices, self.held.shape[1]), bool)
        result[: self.hosts] = self.held.reshape(self.hosts, self.devices, -1)
        result[list(lost)] = False
        return result


def minimal(
    size: Array,
    contents: Array,
    old: Layout,
    new: Layout,
    assignment: Array | None = None,
) -> Movement:
    """Return what moves if what is on a device stays there.

    Args:
        size: (A,) bytes of the atoms.
        contents: (H, devices, A) bool, atoms on each device now; an atom that is nowhere is not
            sent, as it comes from a checkpoint.
        old: layout of the current plan.
        new: layout of the new plan.
        assignment: hosts of the new ranks (default: those of the least bytes in all).
    """
    # Nothing crosses the network between devices of a host, so hosts count.
    host_atoms = np.any(contents, axis=1)
    if assignment is None:
        assignment = fewest_bytes(host_atoms, new.asked, size)
    missing = (new.asked * ~host_atoms[assignment]).sum(axis=0)
    # All hosts that hold an atom send equal parts of it.
    demand = missing * size / np.maximum(host_atoms.sum(axis=0), 1)
    fetched_atoms = new.held & ~contents[assignment].reshape(new.held.shape)
    counts = fetched_atoms.sum(axis=0)
    split = len(size) // (old.grid + 1) * old.grid
    # Equal tensor degrees move whole shards; others are cut or put together.
    is_cut = old.degrees.tensor != new.degrees.tensor
    sliced = float(counts[:split] @ size[:split]) if is_cut else 0.0
    egress = float((host_atoms @ demand).max())
    return Movement(float(counts @ size), float(missing @ size), egress, sliced)


class Flow(NamedTuple):
    """A part of an atom, from ``begin`` to ``end`` of 1, that a device sends to another."""

    atom: int
    source: int
    target: int
    begin: float
    end: float


def flows(
    size: Array,
    contents: Array,
    held: Array,
    exact: bool = True,
    takers: int | None = None,
) -> tuple[Array, list[Flow]]:
    """Return which device sends what to which one, by ``minimal``: the plan behind its price.

    An atom that a device misses comes from its own host if that has it, in equal parts from its
    devices, and else from the hosts that the price takes it from, in their shares.

    Args:
        size: (A,) bytes of the atoms.
        contents: (H, devices, A) bool, atoms on each device now.
        held: (ranks, A) bool, what each rank of the new plan holds.
        exact: whether the least egress is proven by a mixed-integer program, or hosts are those of
            the least bytes in all, and replicas share what is read.
        takers: hosts that new ranks may be on, from number 0 on (default: all).

    Returns:
        (ranks,) the device of each new rank, and what is sent, by atoms.

    Raises:
        ParenvsError: there are too few hosts, or an atom is nowhere.
    """
    hosts, devices = contents.shape[:2]
    takers = hosts if takers is None else takers
    # Number of devices of each host-full of new ranks that hold an atom.
    groups = np.arange(0, len(held), devices)
    asked = np.add.reduceat(held, groups, axis=0, dtype=np.float32)
    if takers < len(asked):
        raise ParenvsError(
            f"{takers} hosts of {devices} devices are too few: {len(asked)} are needed"
        )
    host_atoms = np.any(contents, axis=1)
    assignment, _, shares = least_placement(host_atoms, asked, size, takers, exact)
    devices_of = (assignment[:, None] * devices + np.arange(devices)).ravel()[: len(held)]
    everywhere = contents.reshape(hosts * devices, -1)
    rows: list[Flow] = []
    for rank, atom in np.argwhere(held & ~everywhere[devices_of]).tolist():
        target = int(devices_of[rank])
        host, present = target // devices, contents[:, :, atom]
        weights = shares[:, atom]
        if present[host].any():
            weights = np.arange(hosts) == host
        parts = weights[:, None] * present / np.maximum(present.sum(1), 1)[:, None]
        ends = parts.ravel().cumsum()
        if not ends[-1]:
            raise ParenvsError("a part of the state is nowhere; read it from a checkpoint")
        # Rounding must not leave a part of an atom unsent.
        ends /= ends[-1]
        begin = 0.0
        for source in np.flatnonzero(parts).tolist():
            rows.append(Flow(atom, source, target, begin, float(ends[source])))
            begin = float(ends[source])
    return devices_of, sorted(rows)


def _within(state: State, stages: int) -> Array:
    """(P, n) 1 where a layer is in a stage."""
    bounds, layer = state.bounds(stages), np.arange(len(state.split))
    return ((layer >= bounds[:-1, None]) & (layer < bounds[1:, None])).astype(float)


def atom_bytes(state: State, grid: int) -> Array:
    """Return the bytes of the atoms of a state, ((grid + 1) n,): no shard holds a part of one.

    An atom is one of ``grid`` equal parts of what is split in a layer, and behind those, what is
    not split in a layer.
    """
    return np.concatenate([np.repeat(state.split / grid, grid), state.whole])


def fewest_bytes(host_atoms: Array, needed: Array, size: Array) -> Array:
    """Return the hosts of the new ranks that need the fewest bytes in all, (J,).

    Args:
        host_atoms: (H, A) bool, atoms of each host.
        needed: (J, A) how many ranks of each host-full of new ranks need an atom.
        size: (A,) bytes.
    """
    from scipy.optimize import linear_sum_assignment

    # Whole bytes: hosts that are as good are so to the last bit, however atoms are cut.
    resident = np.rint((host_atoms * size) @ needed.T)
    host, group = linear_sum_assignment(resident, maximize=True)
    return host[np.argsort(group)]


def least_placement(
    had: Array,
    needed: Array,
    size: Array,
    takers: int | None = None,
    exact: bool = True,
) -> tuple[Array, float, Array]:
    """Return hosts of the new ranks whose largest egress is least, and who sends what.

    One mixed-integer program assigns hosts and senders. Atoms with the same holders that are
    needed alike are one. Variables: x[h, j], whether host h takes host-full j; y[h, a], bytes of
    atom a that host h sends; z, the largest sum of a host.

    Args:
        had: (H, A) bool, atoms of each host.
        needed: (J, A) how many ranks of each host-full of new ranks need an atom.
        size: (A,) bytes.
        takers: new ranks are on so many hosts, the first ones (default: all).
        exact: without it, hosts are those of ``fewest_bytes``, and holders send equal parts.

    Returns:
        (J,) hosts, the largest egress in bytes (0 if not ``exact``), and (H, A) each host's share
        of what is sent.
    """
    assignment = fewest_bytes(had[:takers], needed, size)
    if not exact or not (needed * ~had[assignment]).any():
        return assignment, 0.0, had / np.maximum(had.sum(axis=0), 1)
    takers = len(had) if takers is None else takers
    # Atoms alike in holders and need are one variable: tens instead of thousands.
    columns = np.concatenate([had, needed]).T
    kinds, inverse = np.unique(columns, axis=0, return_inverse=True)
    # In GB, as tolerances of HiGHS are absolute.
    amount = np.bincount(inverse.ravel(), size, len(kinds)) / 1e9
    holder, need = kinds[:, : len(had)] > 0, kinds[:, len(had) :]
    # An atom that nobody holds comes from a checkpoint, so it is no variable.
    used = holder.any(axis=1) & need.any(axis=1) & (amount > 0)
    assignment, largest, sent = _placement_program(holder[used], need[used], amount[used], takers)
    by_kind = holder.T.astype(float)  # an atom that is not sent: equal shares of its holders
    is_sent = sent.any(axis=0)
    by_kind[:, np.flatnonzero(used)[is_sent]] = sent[:, is_sent]
    # What nobody holds has no sender: its shares are 0, not NaN.
    shares = by_kind / np.maximum(by_kind.sum(axis=0), 1e-300)
    return assignment, largest * 1e9, shares[:, inverse.ravel()]


def _placement_program(
    holder: Array, need: Array, amount: Array, takers: int
) -> tuple[Array, float, Array]:
    """Solve the program of ``least_placement``.

    Args:
        holder: (A, H) bool, whether a host holds an atom.
        need: (A, J) how many ranks of a host-full need it.
        amount: (A,) its size.
        takers: hosts that may run the new plan.

    Returns:
        (J,) hosts, the largest sum that a host sends, and (H, A) what each host sends.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    (atoms, hosts), fulls = holder.shape, need.shape[1]
    taken, base = hosts * fulls, fulls + hosts
    atom, sender = holder.nonzero()
    width = taken + len(atom) + 1
    rows = np.zeros((base + atoms + hosts, width))
    low, high = np.zeros(len(rows)), np.full(len(rows), np.inf)
    low[:fulls], high[:base] = 1, 1
    # Every host-full has one host, and every host takes one at most.
    rows[:fulls, :taken] = np.tile(np.eye(fulls), hosts)
    rows[fulls:base, :taken] = np.repeat(np.eye(hosts), fulls, axis=1)
    # What a host-full needs and its host lacks is sent.
    lacking = amount[:, None, None] * ~holder[:, :, None] * need[:, None]
    rows[base : base + atoms, :taken] = -lacking.reshape(atoms, taken)
    column = np.arange(taken, width - 1)
    rows[base + atom, column], rows[base + atoms + sender, column] = 1, -1
    rows[base + atoms :, -1] = 1
    upper, goal = np.full(width, np.inf), np.zeros(width)
    upper[:taken] = 1
    upper[takers * fulls : taken] = 0
    # Minimize z, the bytes of the host that sends most.
    goal[-1] = 1
    answer = milp(
        goal, integrality=np.arange(width) < taken, bounds=Bounds(0, upper),
        constraints=LinearConstraint(rows, low, high),
    )  # fmt: skip
    if answer.x is None:
        raise ParenvsError(f"the least egress was not found: {answer.message}")
    sent = np.zeros((hosts, atoms))
    sent[sender, atom] = answer.x[taken:-1].clip(0)
    return answer.x[:taken].reshape(hosts, fulls).argmax(axis=0), float(answer.x[-1]), sent


CHECKPOINT_BYTES = 23e9
"""Bytes of the state of GPT-1.5B, to which the seconds of checkpoints apply."""


@dataclass(frozen=True)
class Costs:
    """Seconds and bytes a second of a system that changes plans.

    Attributes:
        fixed: seconds of every planned change: rendezvous, processes.
        join: seconds to form one group of processes when nodes join.
        leave: the same when none does.
        build: (stages, seconds) to build the model of a stage, at some numbers of stages.
        restart: (nodes, seconds) to start anew when nobody was ready, at some numbers of nodes.
        egress: bytes a second that a node sends.
        sliced: bytes a second that are cut or put together.
        save: seconds in which training waits for a checkpoint to be written.
        load: seconds to read one.

    Changes are a fit of three constants to nine published times of Tenplex (SOSP 2024; R2 0.97,
    errors -16 to +21 %, in sample), restarts and checkpoints are of Parcae (NSDI 2024).
    """

    fixed: float = 2.83
    join: float = 0.0
    leave: float = 0.0
    build: tuple[tuple[float, float], ...] = ((1, 0.0),)
    restart: tuple[tuple[float, float], ...] = (
        (1, 28.76), (2, 33.587), (4, 36.189), (8, 40.882), (12, 39.02), (16, 42.892), (20, 36.749),
        (24, 37.849), (32, 37.588),
    )  # fmt: skip
    egress: float = 4.70e9
    sliced: float = 12.76e9
    save: float = 7.0
    load: float = 7.0
    every: int = 10

    def moving(self, movement: Movement) -> float:
        """Return the seconds in which bytes are sent and cut."""
        return movement.egress_bytes / self.egress + movement.sliced_bytes / self.sliced

    def planned(self, movement: Movement, new: Degrees, joins: bool) -> float:
        """Return the seconds of a change that was planned, or for which spares were ready.

        Args:
            movement: what moves.
            new: degrees of the new plan; there is a group for each replica and stage, one of all
                ranks, and one for each pair of replica and stage (Parcae's rule).
            joins: whether the new plan takes more nodes than are left of the old one.
        """
        # One group per replica and per stage, one of all ranks, one per replica and stage.
        groups = (new.data + 1) * (new.pipeline + 1)
        formed = groups * (self.join if joins else self.leave)
        built = _interpolated(self.build, new.pipeline)
        return self.fixed + formed + built + self.moving(movement)

    def unplanned(self, movement: Movement | None, new: Degrees, devices: int) -> float:
        """Return the seconds of a stop, until a plan trains.

        Args:
            movement: what moves from the nodes that are left; None if a checkpoint is read.
            new: degrees of the new plan.
            devices: of a node.
        """
        # Without replicas the state comes from a checkpoint, at a measured time.
        moved = self.load if movement is None else self.moving(movement)
        return _interpolated(self.restart, new.hosts(devices)) + moved

    @classmethod
    def of_state(cls, size: float) -> Costs:
        """Return the default costs, with checkpoints of so many bytes.

        They are written and read at the rate of the defaults, which are of GPT-1.5B.
        """
        seconds = size / CHECKPOINT_BYTES
        return cls(save=cls.save * seconds, load=cls.load * seconds)

    @classmethod
    def of_parcae(cls, build: dict[str, Any]) -> Costs:
        """Return what Parcae measured on p3.2xlarge, with a model's milliseconds by stages.

        The numbers are of ``liveput/cost_cfg.py`` of its code at efedee7. A checkpoint is saved and
        loaded in 14 s there, of which either is taken to be half.
        """
        points = tuple(sorted((float(key), value / 1e3) for key, value in build.items()))
        fixed, egress = 6.6 + 0.24 + 0.035, 2**30 / 1.1982559
        return cls(fixed=fixed, join=0.5, leave=0.0393, build=points, egress=egress)


@lru_cache(maxsize=4096)
def _interpolated(points: tuple[tuple[float, float], ...], position: float) -> float:
    """Return a measured figure at a position, interpolated; constant beyond the ends."""
    return float(np.interp(position, *np.array(points, float).T))


class Shards:
    """The shards of a hybrid plan whose stages are alike; the hook ``checkpoint`` of its task.

    Attributes:
        degrees: T, P and D of the plan; rank ``t + T (d + D p)`` is of tp rank t, replica d and
            stage p.
        writing: replicas that hold states of their own: those that share them (ZeRO), else 1.

    Raises:
        InfeasibleError: stages differ in tp, devices or ZeRO level.
    """

    flows = staticmethod(flows)
    """Which device sends what to which one when plans change."""

    def __init__(self, plan: HybridPlan) -> None:
        first = plan.stages[0]
        if CHUNKS.get(plan.schedule, 1) > 1:
            raise InfeasibleError(
                f"schedule: a checkpoint's chunks follow 1f1b or interleaved, not {plan.schedule}"
            )
        for number, stage in enumerate(plan.stages):
            for field in ("tp", "devices", "zero"):
                if getattr(stage, field) != getattr(first, field):
                    raise InfeasibleError(
                        f"stages[{number}].{field}: a checkpoint's stages are alike, and the plan "
                        f"has {getattr(stage, field)} there, not {getattr(first, field)}"
                    )
        data = first.devices // (first.tp * plan.context)
        self.degrees = Degrees(first.tp, len(plan.stages), data)
        # ZeRO shares the states over the data-parallel ranks, or over a part of them.
        sharing = max(plan.shard // plan.context, 1) if plan.shard else data
        self.writing = sharing if first.zero else 1
        self._plan = plan

    def stages(self, graph: Graph) -> dict[str, int]:
        """Return the stage of each parameter of a graph by name.

        The first stage has the embedding, the last one the head.
        """
        model = HybridModel.of_graph(graph)
        assert model.work is not None
        work, written = model.work, model.work.program.graph
        names = dict(zip(written.parameter_tensor.tolist(), written.paths, strict=True))
        inside = self.within(len(model))
        return {
            names[tensor].replace("/", "."): int(inside[:, label].argmax())
            for label, rows in work.weights.items()
            for tensor, _ in rows
        }

    def within(self, layers: int) -> Array:
        """Return (P, layers + 2) 1 where a layer is in a stage; embedding and head are layers."""
        result = np.zeros((len(self._plan.stages), layers + 2))
        for number, stage in enumerate(self._plan.stages):
            for first, end in stage.layers:
                result[number, first + 1 : end + 1] = 1
        # Embedding and head lie with the first and the last layer.
        result[:, 0], result[:, -1] = result[:, 1], result[:, -2]
        return result

    def read_from(self, old: Shards, graph: Graph, per_parameter: float) -> Array:
        """Return the bytes that each shard takes of each shard of an old plan, (P T, P' T').

        Args:
            old: shards of the old plan.
            graph: that both plans are for.
            per_parameter: bytes of a parameter with the optimizer's state.
        """
        state = State.of(HybridModel.of_graph(graph), per_parameter)
        inside = (old.within(state.inner), self.within(state.inner))
        return slices(state, old.degrees, self.degrees, inside)

    def fetched_from(self, old: Shards, graph: Graph, per_parameter: float) -> float:
        """Return all bytes that Tenplex's way fetches, each replica its own; see ``read_from``."""
        state = State.of(HybridModel.of_graph(graph), per_parameter)
        return fetched(state, old.degrees, self.degrees).bytes
