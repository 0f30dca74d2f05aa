"""Networks with a loss that know nothing of how they are trained.

``contract`` says what a model may declare: its loss, FLOPs, pipeline stages and tensor cuts."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
