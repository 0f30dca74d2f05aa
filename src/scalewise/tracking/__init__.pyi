from .mirror import main as main
