"""Records of a rank, made off the training path.

The step timer writes a fixed-width row a step; phases, shards, gradient traffic, metrics and the
profiler's window are recorded beside it and summed up at the end."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
