"""Lightning's strategies for our kinds of settings: replicas, shards and stages of a model."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
