"""The command ``flcog report``: what one or several runs did, as one page that needs nothing else."""
