"""What processes of tests do with exported plans; ``examples`` has to be on their path."""

import os
import signal
import time
from pathlib import Path

import torch_transformer as example

from parenvs.errors import ParenvsError


def dying(rank, processes, port, plan, folder):
    """Train; the last process is killed after two steps, and the others write how they ended."""
    from parenvs.exports.parallel import Parallel

    example.join(rank, processes, port)
    words, targets = example.batch()
    parallel = Parallel(example.make()[0], example.loss, plan, words)
    for number in range(1000):
        if (rank, number) == (processes - 1, 2):
            (Path(folder) / "killed").write_text(repr(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            parallel.step(words, targets)
        except ParenvsError as error:
            (Path(folder) / str(rank)).write_text(f"{time.time()!r}\n{error}")
            raise SystemExit(2) from None
