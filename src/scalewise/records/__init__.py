"""The records of a run on disk: no other code reads or writes them.

Everything scalewise says is computed from these files, so they hold raw values, name their unit
and scope, carry a schema version, and survive being cut off at any byte. ``folders`` lists the
files of a cell and of a sweep. Importing this room loads neither torch nor Hydra."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
