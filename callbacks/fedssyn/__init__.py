"""Fedssyn and what belongs to it.

``fedssyn`` is the method, ``generators/`` what clients make their data with, ``synthesis_cache`` keeps these on disk and ``shuffling``
deals them out. ``gradient_heterogeneity`` observes what that changed. ``command`` is ``flcog synthesize``, ``shuffling_study`` the
command of that name.
"""
