from fakes.nvml.fixture import fake_nvml

__all__ = ["fake_nvml"]
