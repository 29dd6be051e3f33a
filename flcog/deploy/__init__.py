"""Federated learning between institutions: flcog's rounds over Flower's SuperLink and SuperNodes."""
