"""From overrides to cells, and from cells to an end.

``compose`` and ``plan`` make cells of overrides, ``preflight`` refuses what cannot run,
``engine`` gives cells to supervisors as devices become free, ``resume`` goes on with a folder,
``status`` says how far it is."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
