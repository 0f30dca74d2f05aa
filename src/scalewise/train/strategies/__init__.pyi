from .registry import BUILDERS as BUILDERS
from .registry import Setting as Setting
from .registry import build as build
