"""Builders of optimizers, which a configuration names by ``_target_``.

Each builder takes parameters and settings, and returns an optimizer of torch
or one of ours."""
