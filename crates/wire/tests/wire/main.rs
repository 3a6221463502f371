//! Frames and connections, with honest and hostile peers.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use rloom_wire::{Connection, Identity, Listener, Options, Token, connect};

mod frames;
mod handshake;
mod hostile;
mod liveness;
mod traffic;

const TOKEN: &str = "a token of this test";

/// A deadline that passes in a hung test alone.
fn soon() -> Instant {
    Instant::now() + Duration::from_mins(2)
}

fn token() -> Token {
    Token::new(TOKEN).unwrap()
}

fn listener(options: Options) -> Listener {
    Listener::bind("127.0.0.1:0", token(), Identity::new("controller", 0, 0), options).unwrap()
}

fn dial(listener: &Listener, options: Options) -> Connection {
    connect(&listener.address().to_string(), &token(), &Identity::new("rank", 2, 0), options, soon()).unwrap()
}

/// Both ends of a connection: connecting and accepting.
fn pair(connecting: Options, accepting: Options) -> (Connection, Connection) {
    let listener = listener(accepting);
    let connected = dial(&listener, connecting);
    (connected, listener.accept(soon()).unwrap())
}
