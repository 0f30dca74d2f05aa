"""A composed configuration becomes a typed cell, or one line that says what is wrong.

``reader`` builds a ``CellConfig`` from the composed node and derives its identity;
``components`` loads what a ``_target_`` names; ``hardware``, ``execution``, ``data_parallel`` and
``strategies`` hold the settings of each group, and ``strategies`` settles ``devices=2``. Nothing
here trains."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
