"""Forward-only work on sensor data: no parameters and no loss, only results and their time."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
