"""What a run leaves behind: its directory, its checkpoints, its trackers."""
