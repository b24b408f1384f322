"""The loop, optimizers and schedules, checkpoints, and the health of the representation."""
