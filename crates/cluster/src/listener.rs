//! The controller's listener for daemons.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use rloom_wire::{Connection, Identity, Listener, Options, Streams, Token, WireError};

use crate::daemon::ROLE;
use crate::error::ClusterError;
use crate::node::Node;
use crate::relay::{self, Arrivals};

/// Accepts the daemons of a run, and the connections of their relays: it lives as long as the run.
#[derive(Debug)]
pub struct NodeListener {
    listener: Listener,
    arrivals: Arc<Arrivals>,
}

impl NodeListener {
    /// Listens on `address`, such as `10.0.0.1:0` for a port of the system's choice.
    pub fn bind(address: &str, token: Token, options: Options) -> Result<Self, ClusterError> {
        let identity = Identity::new("controller", 0, 0);
        let arrivals = Arc::new(Arrivals::default());
        let arriving = Arc::clone(&arrivals);
        let streams = Streams {
            role: relay::ROLE,
            take: Box::new(move |peer, stream| arriving.arrived(peer.identity.index, stream)),
        };
        let listener = Listener::bind_with(address, token, identity, options, Some(streams))?;
        Ok(Self { listener, arrivals })
    }

    /// The address with its actual port.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// The next connection, whatever it is for.
    pub(crate) fn connection(&self, deadline: Instant) -> Result<Connection, WireError> {
        self.listener.accept(deadline)
    }

    /// The connections of relays that this process waits for.
    pub(crate) fn arrivals(&self) -> Arc<Arrivals> {
        Arc::clone(&self.arrivals)
    }

    /// The next daemon. A peer that knows the token and is of another build is an error at once; strangers are named in
    /// the error once the deadline has passed.
    pub fn accept(&self, deadline: Instant) -> Result<Node, ClusterError> {
        loop {
            let connection = self.listener.accept(deadline)?;
            // One that was lost meanwhile is as good as none. Other roles have no business here.
            if connection.peer().identity.role == ROLE && connection.beat().is_ok() {
                return Node::of(connection, Arc::clone(&self.arrivals));
            }
        }
    }
}
