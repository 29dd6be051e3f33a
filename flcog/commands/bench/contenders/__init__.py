"""Programs that train a job with another framework. They run in that framework's environment, which need not have flcog.

A contender is started as ``python contend.py NAME FOLDER`` by the interpreter that has the framework. It finds its job in the folder
(:mod:`.job`), and trains a round each time it is asked to (:mod:`.contend`). Nothing in here may import flcog.
"""
