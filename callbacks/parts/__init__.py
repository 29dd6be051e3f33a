"""Building blocks of several methods: distillation, keyed noise, gradients by inputs, server-side networks, grids of images."""
