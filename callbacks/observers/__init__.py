"""Observers that suit any run and do not change it. Observers of a single method are in the method's folder."""
