"""Starts Ray on this machine, or joins a cluster of Ray, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

from parenvs.errors import ParenvsError, need_extra, one_line, shown
from parenvs.machine import cores

CONNECTING = 5.0
"""Seconds that an address has to answer."""
STORE_BYTES = 200 * 2**20
"""Memory of the object store of a Ray that is started here, unless told otherwise."""


def load_ray() -> Any:
    """Import Ray.

    Raises:
        ParenvsError: it is not installed; the line has the pip command.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Of actors that die each caller is told, not the terminal as well.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    os.environ.setdefault("RAY_worker_niceness", "0")  # its workers are what is waited for
    with need_extra("ray", "distribution by Ray"):
        import ray
    return ray


def check_ray(address: str | None = None) -> None:
    """Check that Ray is installed, and that somebody listens at an address.

    Raises:
        ParenvsError: it is not, or nobody does.
    """
    load_ray()
    if address is not None:
        _answers(address)


@contextlib.contextmanager
def session(
    address: str | None = None, processes: int = 1, store_bytes: int = STORE_BYTES
) -> Iterator[Any]:
    """Have Ray in the block; a session that is there already is used and stays.

    Args:
        address: ``HOST:PORT`` or ``auto`` of a cluster that runs; None starts Ray on this machine.
        processes: Ray actors or tasks that run at once; a Ray that is started here lets as many run
            as there are, even if the machine has fewer cores.
        store_bytes: memory of the object store of a Ray that is started here.

    Yields:
        the module ``ray``.

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
                object_store_memory=store_bytes,
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
    """Check that somebody listens at an address; Ray itself would try for minutes.

    Raises:
        ParenvsError: nobody does, or it is no address.
    """
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
