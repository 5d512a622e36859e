"""Processes of a distributed training, by what they do."""


def pids(team, role):
    """Local processes of a team that play (``player``), serve or learn."""
    if role == "player":
        play = team.learners[0].play
        return [process.pid for _, process in getattr(play, "envs", play).engine.processes]
    server = [team.server[1].pid] if team.server else []
    every = [process.pid for _, process in team.engine.processes]
    return server if role == "server" else [pid for pid in every if pid not in server]
