//! The typed configuration: strict parsing, overrides, cross-field checks
