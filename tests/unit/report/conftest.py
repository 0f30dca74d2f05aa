"""Makes the builder of recorded sweeps importable as ``recorded``."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))
