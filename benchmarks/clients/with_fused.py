"""PPO of ``parenvs train`` on environments on tensors."""

from __future__ import annotations

from functools import partial

from measure import main
from with_parenvs import train

if __name__ == "__main__":
    main("parenvs", partial(train, distribution="fused", learners=1), __file__)
