from .contract import Operation as Operation
