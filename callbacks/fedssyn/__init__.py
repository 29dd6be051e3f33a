"""Fedssyn: synthetic data, its exchange, its measurements and its commands."""
