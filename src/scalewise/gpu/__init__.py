"""GPUs: found, leased, sampled, watched and shown.

``nvml`` is the only door to pynvml. ``leases`` hands devices to cells by UUID, ``sampler`` writes
their series while a cell runs, ``xid`` reads the driver's errors, ``top`` shows all of it live."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
