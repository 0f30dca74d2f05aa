"""Records become figures with their doubt: speed, losses, balance, cost and verdicts.

``load`` reads a sweep, ``configurations`` joins repeats, ``scaling`` sets devices against their
baseline, ``verdict`` judges, ``loss_budget`` says why. Importing this room loads no torch."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
