"""What a supervisor is told of a cell in tests that build no configuration."""

from scalewise.supervisor import Settings

SETTINGS = Settings(
    strategy="single", scaling="strong", one_model=True, batch_sizes=(32, 32),
    environment={}, timeout_s=None, hang_timeout_s=60.0, start_timeout_s=60.0,
    collective_timeout_s=30.0, grace_s=1.0, wrap=None, sample_every_s=None, seed_format=False,
    memory_advice="",
)  # fmt: skip
