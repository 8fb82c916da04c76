"""What a whole plan costs: plan × profile × cluster → prediction."""

from trainwright.step.predict import predict_step

__all__ = ["predict_step"]
