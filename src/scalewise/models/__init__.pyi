from .contract import SplitsIntoStages as SplitsIntoStages
from .contract import Stage as Stage
from .contract import TrainableModel as TrainableModel
from .contract import split as split
