"""Robust rules, which combine uploads although some clients attack, and pre-aggregations, which act before them."""
