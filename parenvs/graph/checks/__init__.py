"""Checks of what files hold, before anything is computed from it."""
