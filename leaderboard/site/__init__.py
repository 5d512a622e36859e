"""The leaderboard's web pages."""
