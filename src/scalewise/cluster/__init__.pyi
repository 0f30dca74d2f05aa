from .ray_executor import RayExecutor as RayExecutor
from .slurm_executor import SlurmExecutor as SlurmExecutor
