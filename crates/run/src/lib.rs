//! The driver: run directory, event stream, journal, checkpoints, resume, report
