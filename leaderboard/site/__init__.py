"""The leaderboard's web pages: a static site of judged entries, in one folder, without network."""

from parenvs.leaderboard.site.writer import site_files, write_site

__all__ = ["site_files", "write_site"]
