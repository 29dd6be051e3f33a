"""FedWalk and what belongs to it.

``fedwalk`` is the method, ``leash`` its public data, ``leash_pretraining`` the arm it is compared with. ``leash_selection`` and
``leash_ranking`` choose the leash's classes for ``command``, which is ``flcog leash``.
"""
