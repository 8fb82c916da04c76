"""From a model and a cluster to a profile: what each layer costs at one point."""

from trainwright.costing.estimate import Estimator, flat_setting

__all__ = ["Estimator", "flat_setting"]
