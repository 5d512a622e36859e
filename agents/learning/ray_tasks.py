"""Starts Ray on this machine, or joins a cluster of Ray, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

from parenvs.errors import ParenvsError, need_extra, one_line, refuse_unknown, shown
from parenvs.machine import cores

CONNECTING = 5.0
"""Seconds that an address has to answer."""
STORE_BYTES = 200 * 2**20
"""Memory of the object store of a Ray that is started here."""


def load_ray() -> Any:
    """Import Ray; if it is missing, ``ParenvsError`` has the pip command."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Of actors that die each caller is told, not the terminal as well.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    os.environ.setdefault("RAY_worker_niceness", "0")  # its workers are what is waited for
    with need_extra("ray", "distribution by Ray"):
        import ray
    return ray


@contextlib.contextmanager
def session(address: str | None = None, processes: int = 1) -> Iterator[Any]:
    """Have Ray in the block and yield its module; a session that exists is used and stays.

    Args:
        address: ``HOST:PORT`` or ``auto`` of a running cluster; None starts Ray on this machine.
        processes: concurrent actors or tasks, on a Ray started here even if it has fewer cores.

    Raises:
        ParenvsError: Ray is not installed, or nobody answers at the address.
    """
    ray = load_ray()
    if ray.is_initialized():
        yield ray
        return
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        if address is None:
            ray.init(
                address="local",
                num_cpus=max(cores(), processes + 1, 4),
                object_store_memory=STORE_BYTES,
                include_dashboard=False,
                **quiet,
            )
        else:
            _answers(address)
            ray.init(address=address, **quiet)
    except (OSError, RuntimeError, ValueError) as error:
        where = "on this machine" if address is None else f"at --address {address}"
        raise ParenvsError(f"Ray does not start {where}: {one_line(error)}") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _answers(address: str) -> None:
    """Check that somebody listens at an address; Ray itself would try for minutes."""
    if address == "auto":
        return
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ParenvsError(f"--address: expected HOST:PORT or auto, not {shown(address)}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECTING).close()
    except OSError as error:
        raise ParenvsError(
            f"--address {address}: nobody answers ({one_line(error)}); start Ray there by "
            f"'ray start --head --port {port}'"
        ) from None


LOCAL, RAY = "local", "ray"
ENGINES = (LOCAL, RAY)
"""Where independent runs are performed: in processes of this machine, or as tasks of Ray."""


def check_engine(name: str, address: str | None = None) -> None:
    """Raise ``ParenvsError`` if an engine is unknown or missing, or ``address`` is not for it."""
    refuse_unknown("--engine: no engine", name, ENGINES)
    if name == RAY:
        load_ray()
        if address is not None:
            _answers(address)
    elif address is not None:
        raise ParenvsError(f"--address is an option of --engine {RAY}")
