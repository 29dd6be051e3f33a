"""FedDisco and what belongs to it.

``feddisco`` is the method, ``secure_sum`` how clients learn the distribution of all labels. ``bound`` is its convergence bound, which
``command`` minimises as ``flcog feddisco-bound``; ``exploration`` is ``flcog feddisco-exploration``, what weights should go by.
"""
