"""One process a cell: it starts the ranks, watches them and writes ``result.json``.

It imports records and host only, so that it starts at once and outlives what it watches."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
