"""Observers of any run, which change nothing in it; those that look at one method live in its family."""
