"""The networks: plain modules with a loss, which know nothing of how they are trained."""
