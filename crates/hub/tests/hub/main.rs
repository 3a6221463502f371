//! Downloads from a hub emulated on this machine.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use miette::Diagnostic as _;
use rloom_hub::HubError;

/// An error's message and hint, as a user sees them.
fn said(error: &HubError) -> String {
    match error.help() {
        Some(hint) => format!("{error}\nhint: {hint}"),
        None => error.to_string(),
    }
}

mod cache;
mod datasets;
mod hints;
mod models;
mod python;
mod server;
