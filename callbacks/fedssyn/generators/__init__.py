"""Fedssyn's generators of labelled data: BetaVAE, ConditionalGAN and DDPM, what they share, and their private training."""
