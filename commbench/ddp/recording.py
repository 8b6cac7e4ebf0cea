"""Recording gradients inside a person's own training script: `record_gradients`, whose trace can be replayed anywhere."""
