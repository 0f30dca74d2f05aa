"""Builders of optimizers, and pruning.

Each builder takes parameters, a kind of device and settings, and returns an optimizer of torch
or one of ours."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
