"""What is wrong with data. Free of torch: the sweep looks at files before anything starts."""

from __future__ import annotations


class DatasetError(ValueError):
    """Data that are missing or not what they should be: one line that says where and what."""
