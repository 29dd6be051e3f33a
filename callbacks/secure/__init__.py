"""Sums over clients that hide each client's part."""
