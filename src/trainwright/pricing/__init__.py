"""What a whole plan costs: plan × profile × cluster → prediction."""

from trainwright.pricing.step import predict_step

__all__ = ["predict_step"]
