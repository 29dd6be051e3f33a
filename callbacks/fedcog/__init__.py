"""The method FedCOG and its observers.

``fedcog`` is the method: ``generation`` optimises the inputs, ``target_labels`` chooses their labels, and ``image_generator`` is
the network for ``generator=true``. ``generated_images`` and ``generation_time`` are observers of the method.
"""
