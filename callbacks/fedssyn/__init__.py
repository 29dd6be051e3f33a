"""The method Fedssyn, its data generators, its observer and its two commands.

``fedssyn`` is the method. Clients generate data with ``generators/``, ``synthesis_cache`` stores the generated sets on disk, and
``shuffling`` distributes them among the clients. ``gradient_heterogeneity`` measures the effect. ``command`` is ``flcog
synthesize``, and ``shuffling_study`` is the command of that name.
"""
