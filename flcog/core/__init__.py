"""Tools that know nothing of federated learning: types, randomness, checks of arguments, files, text."""
