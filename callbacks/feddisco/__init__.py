"""The method FedDisco and its two commands.

``feddisco`` is the method, ``secure_sum`` the secure aggregation of all clients' label counts. ``bound`` is its convergence bound,
which ``command`` minimises as ``flcog feddisco-bound``. ``exploration`` is ``flcog feddisco-exploration``.
"""
