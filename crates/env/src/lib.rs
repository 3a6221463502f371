//! Environments that a policy acts in
