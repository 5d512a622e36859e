"""What devices pay to exchange data: who shares a server, bandwidths of groups, collectives.

Units are seconds, bytes and bytes per second. The functions are elementwise over NumPy arrays,
torch tensors or plain numbers.

There are two rules for the bandwidth of a group. The pure tasks use the paper's: a group in one
server has the server's inner bandwidth, any other the whole network of a server
(``group_bandwidth``). Hybrid plans count the ranks of a group in each server, as each adds its own
network card (``Links``); a group of whole servers has the same bandwidth by both rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from parenvs.arrays import Array, namespace
from parenvs.errors import ClusterError

SYNC_METHODS = ("allreduce", "parameter-server", "sharded-parameter-server")
"""Ways to synchronise gradients, see ``Cluster.sync_seconds``."""
LINKS = ("rank", "node")
"""Rules for the bandwidth of a group between servers: by its ranks in each, or the whole server."""


def server_of(device: Array, devices_per_server: Array) -> Array:
    """Return the number of the server that holds a device."""
    return device // devices_per_server


def same_server(first: Array, end: Array, devices_per_server: Array) -> Array:
    """Return whether the devices ``[first, end)`` lie in one server."""
    return server_of(first, devices_per_server) == server_of(end - 1, devices_per_server)


def group_bandwidth(same: Array, intra_bw: Array, inter_bw: Array) -> Array:
    """Return the bandwidth of groups of devices, bytes/s.

    Args:
        same: bool, whether a group lies in one server.
        intra_bw: bytes/s inside a server.
        inter_bw: bytes/s of a group that spans servers.
    """
    return namespace(same).where(same, intra_bw, inter_bw)


def sync_bytes(size: Array, group: Array, method: str = "allreduce") -> Array:
    """Return the bytes that pass the narrowest link while gradients are synchronised.

    * ``"allreduce"``: a ring, ``2 W (R-1) / R``;
    * ``"parameter-server"``: every worker pushes and pulls all gradients over the link of one
      central server, ``2 W R``;
    * ``"sharded-parameter-server"``: every worker owns 1/R of the gradients; on full-duplex links
      this moves as many bytes as the ring.

    One device needs no synchronisation: 0 bytes.

    Args:
        size: W, bytes of the gradients.
        group: R, devices that hold a copy.
        method: one of ``SYNC_METHODS``.

    Raises:
        ClusterError: the method is unknown.
    """
    if method in ("allreduce", "sharded-parameter-server"):
        return ring_bytes(2.0 * size, group)
    if method == "parameter-server":
        return namespace(group).where(group > 1, 2.0 * size * group, 0.0)
    raise ClusterError(f"sync: unknown method {method!r}; known: {', '.join(SYNC_METHODS)}")


def sync_seconds(size: Array, group: Array, bandwidth: Array, method: str = "allreduce") -> Array:
    """Return the seconds to synchronise ``size`` bytes of gradients over ``group`` devices.

    Args:
        size: bytes of the gradients.
        group: number of devices.
        bandwidth: bytes/s between them.
        method: see ``sync_bytes``.
    """
    return sync_bytes(size, group, method) / bandwidth


def ring_bytes(size: Array, group: Array) -> Array:
    """Return the bytes that pass each link in an all-gather or a reduce-scatter: ``S (R-1) / R``.

    Args:
        size: S, bytes of the whole array.
        group: R, devices in the ring.
    """
    return size * (group - 1) / group


class Ring(NamedTuple):
    """Groups of ranks that pass arrays around, elementwise.

    Attributes:
        group: ranks of each.
        bandwidth: bytes/s of each rank.
        lap: seconds of latency of one time around.
    """

    group: Array
    bandwidth: Array
    lap: Array

    def all_gather(self, size: Array, bucket: float = 0.0) -> Array:
        """See ``Links.all_gather``.

        Args:
            size: bytes of the whole array.
            bucket: bytes that one collective passes at most, each of which goes once around; 0 if
                one passes all.
        """
        laps = self.lap * np.maximum(1.0, size / bucket) if bucket else self.lap
        return ring_bytes(size, self.group) / self.bandwidth + laps


@dataclass(frozen=True)
class Links:
    """The network as the ranks of a group see it, with what a software stack makes of it.

    A group has R ranks, ``stride`` devices apart. k = max(1, min(R, devices_per_server / stride))
    of them share a server, so it spans R / k servers, rounded up. Between servers its bandwidth is
    that of k network cards, at most the inner one. nccl-tests of 1 to 32 H100 servers agree within
    16 % (root mean square over 69 cells) where the rule of the whole server is 361 % off.

    Attributes:
        devices_per_server: devices in each server.
        intra_bw: bytes/s between the devices of a server, one direction.
        nic_bw: bytes/s of one device's share of the network.
        share: share of these bandwidths that collectives reach.
        send_share: share that sends between neighbouring stages reach.
        hop_in: seconds of latency of each step inside a server.
        hop_out: seconds of latency of each step between servers.
        rule: one of ``LINKS``.
    """

    devices_per_server: int
    intra_bw: float
    nic_bw: float
    share: float = 1.0
    send_share: float = 1.0
    hop_in: float = 0.0
    hop_out: float = 0.0
    rule: str = LINKS[0]

    def servers(self, group: Array, stride: Array) -> tuple[Array, Array]:
        """Return the ranks of a group in each server, and the servers that it spans."""
        if self.rule == "node":
            inside = self.devices_per_server
            return np.minimum(group, inside), np.where(group * stride <= inside, 1, 2)
        ranks = np.maximum(1, np.minimum(group, self.devices_per_server // stride))
        return ranks, -(-group // ranks)

    def ring(self, group: Array, stride: Array) -> Ring:
        """Return the bandwidth of collectives of groups of ranks, and their latency."""
        ranks, servers = self.servers(group, stride)
        alone = servers == 1
        if self.rule == "node":
            between = self.devices_per_server * self.nic_bw
        else:
            between = np.minimum(self.intra_bw, ranks * self.nic_bw)
        bandwidth = self.share * np.where(alone, self.intra_bw, between)
        outside = np.where(alone, 0.0, servers * self.hop_out)
        lap = np.where(group > 1, (group - servers) * self.hop_in + outside, 0.0)
        return Ring(group, bandwidth, lap)

    def all_gather(self, size: Array, group: Array, stride: Array) -> Array:
        """Return the seconds in which every rank receives an array of ``size`` bytes in all.

        A reduce-scatter takes as long. One rank takes none.
        """
        return self.ring(group, stride).all_gather(size)

    def all_reduce(self, size: Array, group: Array, stride: Array) -> Array:
        """Return the seconds to sum arrays of ``size`` bytes: twice those of an all-gather."""
        return 2.0 * self.all_gather(size, group, stride)

    def all_to_all(self, size: Array, group: Array, stride: Array) -> Array:
        """Return the seconds in which every rank sends ``size`` bytes in all to the others."""
        servers = self.servers(group, stride)[1]
        bandwidth = self.share * np.where(servers == 1, self.intra_bw, self.nic_bw)
        return ring_bytes(size, group) / bandwidth + self.ring(group, stride).lap

    def dispatch(
        self, size: Array, copies: Array, group: Array, stride: Array, once: bool = False
    ) -> Array:
        """Return the seconds in which every rank sends copies of its tokens to drawn ranks.

        What leaves a server passes the network card, all else the links inside, both at a time.
        Tokens choose their ``copies`` receivers alike.

        Args:
            size: bytes of a rank's tokens, each once.
            copies: K, receivers of each token.
            group: R, ranks.
            stride: distance of the ranks.
            once: whether a token passes to another server, and to another device, once at most.
        """
        servers = self.servers(group, stride)[1]
        if once:
            out = (servers - 1) * (1 - (1 - 1 / servers) ** copies)
            inside = (group - 1) * (1 - (1 - 1 / group) ** copies)
        else:
            out = copies * (servers - 1) / servers
            inside = copies * (1 / servers - 1 / group)
        slowest = np.maximum(out / self.nic_bw, inside / self.intra_bw)
        return size * slowest / self.share + self.ring(group, stride).lap

    def send(self, size: Array, same_server: Array, ranks: Array = 1) -> Array:
        """Return the seconds in which each of ``ranks`` pairs of devices passes ``size`` bytes.

        Each pair has a network card of its own; by the rule of the whole server all pass one link
        together.
        """
        bandwidth: Any = np.where(same_server, self.intra_bw, self.nic_bw)
        if self.rule == "node":
            whole = self.devices_per_server * self.nic_bw
            bandwidth = np.where(same_server, self.intra_bw, whole) / ranks
        return size / (self.send_share * bandwidth) + self.hop(same_server)

    def hop(self, same_server: Array) -> Array:
        """Return the seconds of latency of a send."""
        return np.where(same_server, self.hop_in, self.hop_out)
