//! Free ports of a node.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

use crate::offer::Reach;

/// Attempts to find a port that was not handed out before.
const ATTEMPTS: usize = 100;

/// Ports that were handed out.
#[derive(Debug)]
pub(crate) struct Ports {
    /// Address that [`Reach::Network`] stands for.
    network: IpAddr,
    used: Mutex<BTreeSet<u16>>,
}

impl Ports {
    pub(crate) fn new(network: IpAddr) -> Self {
        Self { network, used: Mutex::default() }
    }

    /// A port that no process listens on, and that was not handed out before.
    pub(crate) fn free(&self, reach: Reach) -> Result<u16, String> {
        let address = match reach {
            Reach::Loopback => Ipv4Addr::LOCALHOST.into(),
            Reach::Network => self.network,
        };
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..ATTEMPTS {
            let bound = TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr());
            let port = bound.map_err(|error| format!("{address}: {error}"))?.port();
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

    fn ports(used: BTreeSet<u16>) -> Ports {
        Ports { network: Ipv4Addr::LOCALHOST.into(), used: Mutex::new(used) }
    }

    #[test]
    fn ports_that_were_handed_out_are_not_handed_out_again() {
        assert!(ports((0..=u16::MAX).collect()).free(Reach::Loopback).is_err());
        let none = ports(BTreeSet::new());
        let port = none.free(Reach::Loopback).unwrap();
        assert_eq!(*none.used.lock().unwrap(), BTreeSet::from([port]));
    }

    #[test]
    fn a_port_of_the_network_belongs_to_its_address() {
        let elsewhere = Ports::new("192.0.2.1".parse().unwrap());
        assert!(elsewhere.free(Reach::Network).unwrap_err().starts_with("192.0.2.1: "));
        elsewhere.free(Reach::Loopback).unwrap();
    }
}
