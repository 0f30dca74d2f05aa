from .experiment import run as run
from .imports import import_for_building as import_for_building
from .imports import import_training as import_training
from .imports import is_ours as is_ours
from .monitor import Monitor as Monitor
from .provenance import collect as collect
from .rank import RankContext as RankContext
from .rank import Team as Team
