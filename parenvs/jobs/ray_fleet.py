"""Nodes of Ray in place of local processes: they are added and really leave (extra ``ray``).

Every process is an actor, those of a node a placement group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from parenvs.agents.learning.ray_tasks import load_ray, session
from parenvs.jobs.fleet import Fleet, Process
from parenvs.jobs.member import Server, Settings

_STORE_BYTES = 80 * 2**20
"""Memory of the object store of a node that is added here; nothing goes through it."""


class RayFleet(Fleet):
    """Nodes by number, each of some actors.

    Args:
        settings: of the job.
        devices: actors of a node.
        ray: the module.
        cluster: to which a node of Ray is added for each of ours, and taken away when it leaves;
            None: nodes of ours are placed on those that Ray has.
    """

    def __init__(self, settings: Settings, devices: int, ray: Any, cluster: Any) -> None:
        super().__init__(settings, devices)
        self.ray, self.cluster = ray, cluster
        self.places: dict[int, tuple[Any, Any]] = {}

    def start(self, node: int) -> None:
        """See ``Fleet``."""
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle, added = {"CPU": 1.0}, None
        if self.cluster is not None:
            bundle[f"node {node}"] = 1.0
            added = self.cluster.add_node(
                num_cpus=self.devices,
                resources={f"node {node}": self.devices},
                object_store_memory=_STORE_BYTES,
            )
        group = placement_group([bundle] * self.devices, "STRICT_PACK")
        placed = self.ray.remote(Server).options(
            num_cpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group)
        )
        actors = [_Actor(self.ray, placed.remote(self.settings)) for _ in range(self.devices)]
        self.processes[node] = [Process(x, x) for x in actors]
        self.places[node] = group, added

    def kill(self, node: int) -> None:
        """See ``Fleet``; a node of Ray that was added for it leaves first."""
        from ray.util.placement_group import remove_placement_group

        group, added = self.places.pop(node, (None, None))
        if added is not None:
            self.cluster.remove_node(added, allow_graceful=False)
        super().kill(node)
        if group is not None:
            remove_placement_group(group)

    def _ready(self, pipes: list[Any], seconds: float) -> list[Any]:
        """See ``Fleet``."""
        replies = {x.reply: x for x in pipes}
        return [replies[x] for x in self.ray.wait(list(replies), timeout=seconds)[0]]


class _Actor:
    """An actor as a pipe and a process."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self.ray, self.actor = ray, actor
        self.reply = actor.answer.remote()

    def send(self, order: tuple[str, tuple[Any, ...]]) -> None:
        """Give an order."""
        self.reply = self.actor.answer.remote(*order)

    def recv(self) -> Any:
        """Return its reply.

        Raises:
            EOFError: the actor is gone.
        """
        try:
            return self.ray.get(self.reply)
        except self.ray.exceptions.RayError as error:
            raise EOFError from error

    def kill(self) -> None:
        """End it at once."""
        self.ray.kill(self.actor)

    def join(self) -> None:
        """Nothing is left to wait for."""

    close = join


@contextmanager
def nodes_of_ray(
    address: str | None = None,
) -> Iterator[tuple[str, Callable[[Settings, int], Fleet]]]:
    """Have nodes of Ray in the block: the address of this machine, and what makes the fleet.

    Args:
        address: ``HOST:PORT`` or ``auto`` of Ray that runs; None: every node is one of Ray on this
            machine, which leaves when it does.

    Raises:
        ParenvsError: Ray is not installed, or nobody answers at the address.
    """
    ray, cluster = load_ray(), None
    if address is None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
        cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        with session(address if cluster is None else cluster.address):

            def fleet(settings: Settings, devices: int) -> Fleet:
                return RayFleet(settings, devices, ray, cluster)

            yield ray.util.get_node_ip_address(), fleet
    finally:
        if cluster is not None:
            cluster.shutdown()
