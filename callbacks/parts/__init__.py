"""Building blocks of several methods: distillation, control variates, keyed noise, generators, grids of images."""
