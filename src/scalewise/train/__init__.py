"""One cell as one rank sees it: from a typed configuration to trained steps on record.

``experiment`` builds the trainer and runs it. ``build`` makes model and data,
``monitor`` records a script that is not ours."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
