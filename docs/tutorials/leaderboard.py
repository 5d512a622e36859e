"""Submit to the leaderboard.

An entry is a file of plans, one for each problem of a task. The judge computes all costs anew, so
an entry cannot claim what it does not have. The plain installation is enough.
"""

import numpy as np

from parenvs.leaderboard.check import check_file
from parenvs.leaderboard.submit import submission

TASK = "packed-order"

# %% A planner
# `submission` calls a function with every problem of the task. The task here asks for the order
# of micro-batches that take different times. `problem.target` is the problem as
# `parenvs.problem` gives it, and `target.plan(order)` makes a plan. The order below puts short
# micro-batches to both ends and long ones into the middle.


def plan(problem):
    """Short micro-batches first and last, long ones in the middle."""
    target = problem.target
    rising = np.argsort(target.work)
    return target.plan(np.concatenate([rising[::2], rising[1::2][::-1]]))


# %% The entry
# The fields say who made it, how, and what it was trained on. A problem on which the planner raises
# `InfeasibleError` or `TimeLimitError` is left out, and scores as the trivial plan.

entry = submission(
    TASK,
    plan,
    entry="my-pyramid",
    authors=["Ada Lovelace"],
    method="Short micro-batches at both ends, long ones in the middle.",
)
entry.save("submissions/packed-order/my-pyramid.json")

# %% The verdict
# `check` judges a folder as the leaderboard does. From the command line:
# `parenvs leaderboard check submissions/packed-order/my-pyramid.json`.

checked = check_file("submissions/packed-order/my-pyramid.json")
print(f"accepted: {not checked.reasons}, score {checked.score:.4f}")

# %% Send it
# Put the file under `leaderboard/submissions/TASK/`, and make the tables anew; the rules of the
# leaderboard name the commands.
