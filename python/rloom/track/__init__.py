"""Passes a run to an experiment tracker: `rloom track RUN --to wandb|mlflow|trackio`.

The process reads the run's event stream and writes nothing that the run reads, so that a tracker that fails
or hangs does not affect training.
"""
