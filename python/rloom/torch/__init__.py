"""PyTorch training ranks: scores, gradients and optimizer steps of models that transformers opens."""
