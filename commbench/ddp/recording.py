"""Recording gradients inside a person's own training script: `record_gradients`, whose trace replays anywhere."""
