"""The leaderboard: plans in, verdicts out; every entry is judged anew on every run."""
