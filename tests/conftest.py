"""One thread a worker: workers with threads each get in each other's way."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
