"""Builders of optimizers, which a configuration names by ``_target_``.

Each builder takes parameters, a kind of device and settings, and returns an optimizer of torch
or one of ours."""
