from .data_parallel import Setting as Setting
from .registry import BUILDERS as BUILDERS
