"""PyTorch training ranks: scoring, back-propagation and optimizer steps for models that transformers opens."""
