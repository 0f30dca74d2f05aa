from .application import main as main
