"""One thread a worker: more get in each other's way. No test fails by a clock, or keeps."""

import os

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PARENVS_CACHE"] = ""
settings.register_profile("parenvs", deadline=None)
settings.load_profile("parenvs")
