"""The command line: ``train.py`` through Hydra, and ``scalewise`` for everything else."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
