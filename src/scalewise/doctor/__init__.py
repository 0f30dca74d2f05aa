"""Examination of a host: the rates of its devices, and their faults.

Collectives, copies and matrix products are verified and timed on every device; rules turn the
rates into findings and advice."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
