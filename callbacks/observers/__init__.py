"""Observers that measure a run and change nothing in it."""
