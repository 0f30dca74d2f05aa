"""Mirrors of the records in Trackio and Weights & Biases.

The mirror reads what is on disk, in a process of its own, so that no tracker can slow a rank."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
