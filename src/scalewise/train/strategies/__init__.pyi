from .ddp import Setting as Setting
from .registry import BUILDERS as BUILDERS
from .registry import build_strategy as build_strategy
