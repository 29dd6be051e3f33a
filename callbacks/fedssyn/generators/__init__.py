"""Generators of labelled data that a client can train."""
