"""Any training script of PyTorch's, unchanged, as the program of a rank.

``site/sitecustomize.py`` is all that a rank loads at its start. With the first step of an
optimizer the process takes the place of its rank: ``models`` finds what is trained, ``steps`` tells
where a step ends, ``recorder`` keeps the records of a cell and ends the run."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
