"""The method Fedssyn, its data generators and its command.

``fedssyn`` is the method and its command, ``flcog synthesize``. Clients generate data with ``generators/``, ``synthesis_cache`` stores
the generated sets on disk, and ``shuffling`` distributes them among the clients.
"""
