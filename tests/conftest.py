from __future__ import annotations

from hypothesis import HealthCheck, settings

# Same examples on every run; no deadline, because the machines that run this differ widely.
settings.register_profile(
    "quick",
    deadline=None,
    derandomize=True,
    max_examples=25,
    suppress_health_check=[HealthCheck.too_slow],
)
# New examples on every run: pytest --hypothesis-profile=thorough
settings.register_profile(
    "thorough", settings.get_profile("quick"), derandomize=False, max_examples=400
)
settings.load_profile("quick")
