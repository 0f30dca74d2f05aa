from .sensors import Operation as Operation
