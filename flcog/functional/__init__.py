"""A module as functions of its parameters: forward passes, steps, logged values and scores."""
