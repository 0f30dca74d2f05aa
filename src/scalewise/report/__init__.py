"""Figures of an analysis on the terminal, in Markdown, in plots and in files."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
