//! Free ports of a node.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

/// Attempts to find a port that was not handed out before.
const ATTEMPTS: usize = 100;

/// Ports that were handed out.
#[derive(Debug, Default)]
pub(crate) struct Ports(Mutex<BTreeSet<u16>>);

impl Ports {
    /// A port of the loopback interface that no process listens on, and that was not handed out before.
    pub(crate) fn free(&self) -> Result<u16, String> {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..ATTEMPTS {
            let bound =
                TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|listener| listener.local_addr());
            let port = bound.map_err(|error| error.to_string())?.port();
            if used.insert(port) {
                return Ok(port);
            }
        }
        Err("all free ports were handed out before".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_were_handed_out_are_not_handed_out_again() {
        assert!(Ports(Mutex::new((0..=u16::MAX).collect())).free().is_err());
        let none = Ports::default();
        let port = none.free().unwrap();
        assert_eq!(*none.0.lock().unwrap(), BTreeSet::from([port]));
    }
}
