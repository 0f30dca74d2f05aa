"""The host of this process: its limits, its other processes and its terminal.

``limits`` has cores and memory and their use; ``identity`` says which host, code and data a record
is of; ``processes`` and ``locks`` are those of this host; ``console`` writes what is safe to print.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
