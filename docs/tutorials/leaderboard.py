"""Submit to the leaderboard.

An entry is a file of plans, one per problem of a task. The leaderboard recomputes all costs, so an
entry cannot claim a cost that its plans do not have. The plain installation is enough.
"""

import numpy as np

from parenvs.leaderboard.check import check_file
from parenvs.leaderboard.submit import submission

TASK = "pipeline-cut"

# %% A planner
# `submission` calls a function with every problem of the task. This task cuts a model into pipeline
# stages. The planner below gives each stage the same share of the compute time and of the devices.


def plan(problem):
    """Return stages of equal compute time on equally many devices."""
    chain, stages = problem.pipeline, problem.stages
    share = np.arange(1, stages) / stages
    cuts = np.searchsorted(chain.seconds_sum, share * chain.seconds_sum[-1])
    return problem.pipeline_plan(cuts, np.rint(share * chain.cluster.devices))


# %% The entry
# The fields name the authors, the method, and what it was trained on. A problem on which the
# planner raises `InfeasibleError` or `TimeLimitError` is left out, and scores as the trivial plan.

entry = submission(
    TASK,
    plan,
    entry="my-even",
    authors=["Ada Lovelace"],
    method="Stages of equal compute time on equally many devices.",
)
entry.save("submissions/pipeline-cut/my-even.json")

# %% The check
# `check` evaluates a folder as the leaderboard does. From the command line:
# `parenvs leaderboard check submissions/pipeline-cut/my-even.json`.

checked = check_file("submissions/pipeline-cut/my-even.json")
print(f"accepted: {not checked.reasons}, score {checked.score:.4f}")

# %% Send it
# Put the file under `leaderboard/submissions/TASK/`, and make the tables anew; the rules of the
# leaderboard name the commands.
