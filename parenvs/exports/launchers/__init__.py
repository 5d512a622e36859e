"""Plans as the settings of programs that train: Megatron-LM, torchtitan, DeepSpeed."""
