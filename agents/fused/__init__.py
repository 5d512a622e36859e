"""PPO with environments, policy and learner on one device."""
