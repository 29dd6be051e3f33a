"""The method FedCOG and its observers.

``fedcog`` is the method, and ``generation`` optimises its inputs. ``observers`` are GeneratedImages and GenerationTime.
"""
