"""PPO and Rainbow on any chain, with convolutions along it."""
