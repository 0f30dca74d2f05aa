"""What this process may use of its host, who else runs there, and what it says to the terminal.

``limits`` has cores and memory, ``identity`` says which host, code and data a record is of,
``processes`` and ``locks`` are those of this host, and ``console`` writes what is safe to print.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
