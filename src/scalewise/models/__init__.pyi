from .contract import SplitsIntoStages as SplitsIntoStages
from .contract import Stage as Stage
from .contract import TrainableModel as TrainableModel
from .contract import returns_loss as returns_loss
from .contract import split as split
from .contract import without_loss as without_loss
