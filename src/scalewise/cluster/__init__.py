"""Executors of cells on other hosts: SLURM and Ray. Each imports its own files alone."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
