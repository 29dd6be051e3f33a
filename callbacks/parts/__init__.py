"""Building blocks of several methods: distillation, control variates, keyed noise, gradients by inputs, generators, grids of images."""
