"""The method FedWalk, its comparison arm and its command.

``fedwalk`` is the method, ``leash`` its public data, and ``leash_pretraining`` the arm that papers compare it with. ``command`` is
``flcog leash``, which ranks and chooses the leash's classes.
"""
