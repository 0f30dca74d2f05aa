"""Data sets, built alike on every rank and handed out in whole batches.

``contract`` says what a data set is. The others read text, tables, tokens and sensor streams, or
make synthetic samples."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
