//! The tiers of the machine.

use super::*;

/// Prints the tiers and, by `left out`, those that the machine lacks: `.ci/rewards` shows them.
#[test]
fn of_this_machine() {
    for sandbox in sandboxes() {
        eprintln!("tier {}", sandbox.tier());
    }
}
