from .data_parallel import HeterogeneousDDP as HeterogeneousDDP
from .data_parallel import LocalSgd as LocalSgd
from .data_parallel import OwnStreamDDP as OwnStreamDDP
from .data_parallel import Setting as Setting
from .data_parallel import UnwrappedReplicas as UnwrappedReplicas
from .model_parallel import FsdpStrategy as FsdpStrategy
from .pipeline import PipelineStrategy as PipelineStrategy
