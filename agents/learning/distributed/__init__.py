"""One PPO, several ways to spread it over processes and machines; needs the extra ``ray``.

``distribution`` names the ways. ``ppo`` has MaskablePPO with its rollouts, or its rollouts and its
updates, on Ray actors (``worker``), which ``workers`` starts, restarts and asks; ``update`` is the
update that learners share. ``rllib`` is PPO without waiting, by RLlib. ``tasks`` spreads runs that
are independent of each other. Only functions import Ray.
"""
