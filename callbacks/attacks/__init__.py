"""Attacks: clients that harm the global model on purpose."""
