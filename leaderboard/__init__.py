"""The leaderboard: fixed tasks, entries with plans, verdicts; every run judges all plans anew."""
