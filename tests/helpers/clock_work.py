"""What the processes of tests do together."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist


def summed(rank, value):
    """The sum of value + rank over all processes, and the environment's threads."""
    own = torch.tensor([float(value + rank)])
    dist.all_reduce(own)
    return own.item(), torch.get_num_threads()


def failing(rank):
    """The second process fails while the first waits for it."""
    if rank == 1:
        raise ValueError("no luck\nat all")
    dist.barrier()


def sleeping(rank, folder):
    """Leave the number of this process in a folder, and stay."""
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)
