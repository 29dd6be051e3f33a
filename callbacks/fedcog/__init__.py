"""FedCOG and what belongs to it.

``fedcog`` is the method; ``generation`` optimises the inputs, ``target_labels`` chooses their labels, ``image_generator`` is the network
of its generator form. ``generated_images`` and ``generation_time`` are observers of it.
"""
