"""Differential privacy: its methods and the accountant."""
