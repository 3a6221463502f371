//! The HTTP server: connections, limits, keys, routes, bodies.

mod answer;
mod body;
mod exchange;
mod extension;
mod key;
mod origin;
mod patient;
mod route;
mod server;
mod service;
mod session;

pub use exchange::Exchange;
pub use extension::{Extension, ExtensionAnswer, ExtensionFuture, ExtensionRequest, ExtensionRoute};
pub use key::ApiKey;
pub use server::{Server, Stopper, listen};
