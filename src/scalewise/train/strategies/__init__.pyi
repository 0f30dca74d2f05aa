from .ddp import Setting as Setting
from .registry import BUILDERS as BUILDERS
