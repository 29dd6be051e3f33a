"""Fedssyn's generators of labelled data: BetaVAE, ConditionalGAN and DDPM, their common interface, and their private training."""
