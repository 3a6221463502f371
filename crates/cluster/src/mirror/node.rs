//! The controller's side: commands to one node.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use super::failure::MirrorFailure;
use super::message::{MirrorCommand, MirrorCopy, MirrorEvent, MirrorOrder};
use crate::error::ClusterError;
use crate::message::{NodeCommand, NodeEvent};
use crate::node::Node;

impl Node {
    /// Copies published weights to the node. Blocks until the copy is complete.
    pub fn mirror(&self, order: &MirrorOrder, deadline: Instant) -> Result<MirrorCopy, ClusterError> {
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let left = u64::try_from(left).unwrap_or(u64::MAX);
        let order = MirrorOrder { timeout_ms: order.timeout_ms.min(left), ..order.clone() };
        let version = order.version.clone();
        let operation = || format!("copy the weights {version}");
        match self.ask_mirror(MirrorCommand::Copy(order), &operation, deadline)? {
            MirrorEvent::Copied(copy) => Ok(copy),
            MirrorEvent::Failed(failure) => Err(self.mirror_failed(&failure, &version, operation())),
            event => Err(self.unexpected(NodeEvent::Mirror(event), operation())),
        }
    }

    /// Drops all copies but those of the versions in `keep`; returns the names of what is left.
    pub fn forget_mirror(&self, keep: &[String], deadline: Instant) -> Result<Vec<String>, ClusterError> {
        let operation = || "drop copies of weights".to_owned();
        let command = MirrorCommand::Forget { keep: keep.to_vec() };
        match self.ask_mirror(command, &operation, deadline)? {
            MirrorEvent::Kept { versions } => Ok(versions),
            event => Err(self.unexpected(NodeEvent::Mirror(event), operation())),
        }
    }

    /// Has the node serve its copies to other nodes, on `address` or that of its route to the controller.
    pub fn serve_mirror(
        &self,
        address: Option<IpAddr>,
        deadline: Instant,
    ) -> Result<SocketAddr, ClusterError> {
        let operation = || "serve copies of weights to other nodes".to_owned();
        match self.ask_mirror(MirrorCommand::Serve { address }, &operation, deadline)? {
            MirrorEvent::Serving { address } => Ok(address),
            MirrorEvent::Failed(failure) => Err(self.mirror_failed(&failure, "", operation())),
            event => Err(self.unexpected(NodeEvent::Mirror(event), operation())),
        }
    }

    fn ask_mirror(
        &self,
        command: MirrorCommand,
        operation: &dyn Fn() -> String,
        deadline: Instant,
    ) -> Result<MirrorEvent, ClusterError> {
        match self.ask(&NodeCommand::Mirror(command), operation, deadline)? {
            NodeEvent::Mirror(event) => Ok(event),
            event => Err(self.unexpected(event, operation())),
        }
    }

    fn mirror_failed(&self, failure: &MirrorFailure, version: &str, operation: String) -> ClusterError {
        let (node, version, detail) = (self.name(), version.to_owned(), failure.to_string());
        match failure {
            MirrorFailure::NoRoom { .. } => ClusterError::MirrorRoom { node, version, detail },
            MirrorFailure::Damaged { .. } => ClusterError::MirrorDamaged { node, version, detail },
            MirrorFailure::Late => ClusterError::Deadline { node, operation },
            _ => ClusterError::Refused { node, operation, reason: detail },
        }
    }
}
