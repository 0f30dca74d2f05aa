"""How a model is divided over devices: what ``train.strategies`` builds, on torch's side."""
