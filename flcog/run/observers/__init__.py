"""The observers that every run has: progress, checkpoints and a summary."""
