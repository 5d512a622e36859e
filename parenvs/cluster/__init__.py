"""Clusters: devices, the links between them, and what collectives cost on them."""

from parenvs.cluster.cluster import DEFAULT_DEVICES, PRESETS, Cluster, choose_cluster, load_measured
from parenvs.cluster.collectives import (
    LINKS,
    SYNC_METHODS,
    Links,
    group_bandwidth,
    same_server,
    server_of,
    sync_bytes,
    sync_seconds,
)
from parenvs.cluster.devices import (
    DEVICES,
    EFFICIENCY,
    MEMORY_FRACTION,
    PRECISIONS,
    RUNS_ON,
    Device,
)
from parenvs.cluster.measured import COLLECTIVES, Measurement

__all__ = [
    "COLLECTIVES",
    "DEFAULT_DEVICES",
    "DEVICES",
    "EFFICIENCY",
    "LINKS",
    "MEMORY_FRACTION",
    "PRECISIONS",
    "PRESETS",
    "RUNS_ON",
    "SYNC_METHODS",
    "Cluster",
    "Device",
    "Links",
    "Measurement",
    "choose_cluster",
    "group_bandwidth",
    "load_measured",
    "same_server",
    "server_of",
    "sync_bytes",
    "sync_seconds",
]
