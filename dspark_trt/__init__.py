"""The builder: checkpoints in, an engine bundle out. Knows nothing of running one."""
