"""The engine, which turns one round into the next; it knows no files, trackers or terminal."""
