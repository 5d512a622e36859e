"""Even shares of the seconds and of the devices."""

import numpy as np

from parenvs.leaderboard.methods import answer


def plan(problem):
    """Return the plan of a problem of ``pipeline-drawn``."""
    chain, stages = problem.pipeline, problem.stages
    share = np.arange(1, stages) / stages
    cuts = np.searchsorted(chain.seconds_sum, share * chain.seconds_sum[-1])
    device_cuts = np.rint(share * chain.cluster.devices)
    return problem.pipeline_plan(cuts, device_cuts)


if __name__ == "__main__":
    answer(plan)
