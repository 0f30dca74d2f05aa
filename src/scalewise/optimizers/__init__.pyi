from .pruning import Pruner as Pruner
from .pruning import UnprunableError as UnprunableError
