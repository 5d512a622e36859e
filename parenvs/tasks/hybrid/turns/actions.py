"""The choices that make a hybrid plan, turn by turn, and the agents that take them.

=========  =========  ==========================================================  =======
turn       agent      what is chosen                                              choices
=========  =========  ==========================================================  =======
global     data       micro-batch x chunks x sequence parallelism, once                40
layers     pipeline   last layer of the next stage, or "to the end"                   128
devices    pipeline   its devices: a power of two, or all that are left                 9
server     pipeline   which server comes next, for each one that it begins             64
tp         operator   ranks that share every matrix                                     4
data       data       ZeRO level x what is recomputed                                  16
=========  =========  ==========================================================  =======
"""

from __future__ import annotations

import numpy as np

MICRO_BATCHES = (1, 2, 4, 8, 16)
"""Samples of a micro-batch in one replica of the first stage."""
CHUNKS = (1, 2, 4, 8)
"""Pieces of the chain on each stage."""
LAYERS = 128
"""Maximum number of layers of a chain, or a piece of it; the last choice is "to the end"."""
TO_THE_END = LAYERS - 1
DEVICES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Devices of a stage; one more choice is all that are left."""
ALL_LEFT = len(DEVICES)
SERVERS = 64
"""Maximum number of servers of a cluster, and of stages of a plan."""
TPS = (1, 2, 4, 8)
"""Ranks that share every matrix."""
ZEROS = (0, 1, 2, 3)
"""Which states the replicas share."""
FEWEST = "fewest"
"""Recompute as few layers as fit: attention first, from the first layer on, then whole layers."""
MODES = ("none", "selective", "full", FEWEST)
"""What the backward pass recomputes of a stage."""

TURNS = ("global", "layers", "devices", "server", "tp", "data")
GLOBAL, STAGE_LAYERS, STAGE_DEVICES, SERVER, TP, DATA = range(len(TURNS))
SIZES = (
    len(MICRO_BATCHES) * len(CHUNKS) * 2,
    LAYERS,
    len(DEVICES) + 1,
    SERVERS,
    len(TPS),
    len(ZEROS) * len(MODES),
)
"""Choices of each turn."""

AGENTS = ("data", "pipeline", "operator")
AGENT_OF = (0, 1, 1, 1, 2, 0)
"""Number of the agent that has each turn."""
AGENT_TURNS = ((GLOBAL, DATA), (STAGE_LAYERS, STAGE_DEVICES, SERVER), (TP,))
"""Turns of each agent; its action space holds their choices one after the other."""


def _offsets() -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """First action of each turn, of all agents together and of its own; sizes of the agents'."""
    together, own, sizes = [0] * len(TURNS), [0] * len(TURNS), []
    before = 0
    for turns in AGENT_TURNS:
        begin = before
        for turn in turns:
            together[turn], own[turn] = before, before - begin
            before += SIZES[turn]
        sizes.append(before - begin)
    return tuple(together), tuple(own), tuple(sizes)


OFFSETS, OWN_OFFSETS, AGENT_SIZES = _offsets()
"""First action of each turn when one agent takes all; when each agent has its own; their sizes."""
ACTIONS = sum(AGENT_SIZES)
"""Actions of one agent that takes all turns."""
TURN_OF = tuple(turn for turns in AGENT_TURNS for turn in turns for _ in range(SIZES[turn]))
"""Turn of each action of one agent that takes all turns."""

_B, _V, _SP = np.unravel_index(np.arange(SIZES[GLOBAL]), (len(MICRO_BATCHES), len(CHUNKS), 2))
GLOBAL_MICRO_BATCH = np.array(MICRO_BATCHES)[_B]
GLOBAL_CHUNKS = np.array(CHUNKS)[_V]
GLOBAL_SHARED = _SP.astype(bool)
"""Micro-batch, chunks and sequence parallelism of each choice of the global turn, (40,)."""


def global_choice(micro_batch: int, chunks: int, sequence_parallel: bool) -> int:
    """Return the choice of the global turn that means these settings."""
    first = MICRO_BATCHES.index(micro_batch) * len(CHUNKS) + CHUNKS.index(chunks)
    return 2 * first + int(sequence_parallel)


def data_choice(zero: int, mode: str) -> int:
    """Return the choice of the data turn that means a ZeRO level and a mode."""
    return len(MODES) * ZEROS.index(zero) + MODES.index(mode)
