"""What several methods are built of: distillation, keyed noise, gradients by inputs, server-side networks, grids of images."""
