//! The scheduler: a pure state machine
