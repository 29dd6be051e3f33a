"""What turns one round into the next: no files, no trackers, no terminal."""
