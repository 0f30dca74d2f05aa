"""What this process may use of its host, who else runs there, and what it says to the terminal.

Limits of cores and memory (``limits``), who a host, a code state and a data set are (``identity``,
``environment``), processes and their descendants (``processes``), locks between processes
(``locks``), and text that is safe to print (``console``)."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
