"""How the devices of a cell work together: one module for each strategy."""

from scalewise.train.strategies.base import Setting, StrategyConfig
from scalewise.train.strategies.builders import BUILDERS, build
from scalewise.train.strategies.registry import KINDS, strategy_config

__all__ = ["BUILDERS", "KINDS", "Setting", "StrategyConfig", "build", "strategy_config"]
