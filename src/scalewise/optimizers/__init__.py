"""Builders of optimizers: from parameters, a kind of device and settings to torch's own classes."""
