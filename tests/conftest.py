from __future__ import annotations

from hypothesis import HealthCheck, settings

# Same examples on every run; no deadline, because the machines that run this differ widely.
settings.register_profile(
    "trainwright",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("trainwright")
