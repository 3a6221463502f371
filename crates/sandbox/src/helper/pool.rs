//! Helpers that have been started before they are needed: a start takes half of the cost of a short program.

use std::io;
use std::sync::{Mutex, PoisonError};

use rloom_core::Program;

use super::call::Helper;
use crate::Tier;
use crate::group::Groups;

/// Helpers that wait for a request.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    waiting: Mutex<Vec<Helper>>,
    groups: Option<Groups>,
}

impl Pool {
    /// A pool whose executions are in groups of their own, if there are groups for them.
    pub(crate) fn new(groups: Option<Groups>) -> Self {
        Self { waiting: Mutex::default(), groups }
    }

    /// The groups for executions.
    pub(crate) fn groups(&self) -> Option<&Groups> {
        self.groups.as_ref()
    }

    /// A helper that waits, or a new one.
    pub(super) fn take(&self, program: &Program, tier: Tier) -> io::Result<Helper> {
        loop {
            let found = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let Some(mut helper) = found else { return Helper::start(program, tier) };
            if helper.is_alive() {
                return Ok(helper);
            }
            helper.end();
        }
    }

    /// Starts a helper for a later call, unless there is one for each core.
    pub(super) fn refill(&self, program: &Program, tier: Tier) {
        let most = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let count = || self.waiting.lock().unwrap_or_else(PoisonError::into_inner).len();
        if count() < most
            && let Ok(helper) = Helper::start(program, tier)
        {
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(helper);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        for helper in waiting {
            helper.end();
        }
    }
}
