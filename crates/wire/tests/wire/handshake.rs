//! Admission: token, build and epoch.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rloom_wire::{
    BUILD, Frame, Identity, Listener, Options, Peer, Streams, Token, WireError, connect, connect_stream,
};

use crate::{TOKEN, dial, listener, pair, soon, token};

#[test]
fn both_ends_know_each_other() {
    let (connecting, accepting) = pair(Options::default(), Options::default());
    assert_eq!(connecting.peer().identity, Identity::new("controller", 0, 0));
    assert_eq!(accepting.peer().identity, Identity::new("rank", 2, 0));
    assert!(accepting.peer().to_string().starts_with("rank 2 at 127.0.0.1:"));
    let (version, sources) = BUILD.split_once('+').unwrap();
    assert_eq!((version, sources.len()), (env!("CARGO_PKG_VERSION"), 16));
}

#[test]
fn a_wrong_token_is_refused_at_both_ends() {
    let listener = listener(Options::default());
    let address = listener.address().to_string();
    let other = Token::random().unwrap();
    let identity = Identity::new("rank", 2, 0);
    let error = connect(&address, &other, &identity, Options::default(), soon()).unwrap_err();
    assert!(matches!(error, WireError::WrongToken { .. }), "{error}");
    assert!(!error.to_string().contains(other.reveal()));
    let refused = loop {
        match listener.accept(Instant::now() + Duration::from_millis(1)) {
            Err(WireError::NobodyConnected { refused, .. }) if refused.is_empty() => {}
            accepted => break accepted.unwrap_err().to_string(),
        }
    };
    assert!(refused.contains("has another token"), "{refused}");
    assert!(!refused.contains(TOKEN) && !refused.contains(other.reveal()), "{refused}");
    // The hint: the same token.
    connect(&address, &token(), &identity, Options::default(), soon()).unwrap();
    listener.accept(soon()).unwrap();
}

#[test]
fn a_listener_without_the_token_is_refused() {
    let listener = listener(Options::default());
    let address = listener.address();
    // A relay that answers the challenge with a proof of its own.
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let relayed = relay.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        let (mut client, _) = relay.accept().unwrap();
        let mut server = TcpStream::connect(address).unwrap();
        let (mut to, mut from) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = server.read(&mut buffer) {
            let text = &mut buffer[..count];
            // Another role under the same proof.
            if let Some(at) = text.windows(10).position(|part| part == b"controller") {
                text[at..at + 10].copy_from_slice(b"c0ntroller");
            }
            client.write_all(text).unwrap();
        }
    });
    let identity = Identity::new("rank", 2, 0);
    let error = connect(&relayed, &token(), &identity, Options::default(), soon()).unwrap_err();
    assert!(matches!(error, WireError::WrongToken { .. }), "{error}");
}

#[test]
fn another_build_is_refused_at_both_ends() {
    let listener = listener(Options::default());
    let address = listener.address().to_string();
    let other = Identity { build: "0.0.9+0".to_owned(), ..Identity::new("rank", 2, 0) };
    let error = connect(&address, &token(), &other, Options::default(), soon()).unwrap_err();
    assert!(matches!(error, WireError::WrongBuild { .. }), "{error}");
    let error = listener.accept(soon()).unwrap_err();
    assert!(matches!(error, WireError::WrongBuild { .. }), "{error}");
    assert!(error.to_string().contains("rank 2") && error.to_string().contains("0.0.9+0"), "{error}");
    // The hint: the same build.
    dial(&listener, Options::default());
    listener.accept(soon()).unwrap();
}

#[test]
fn an_earlier_epoch_is_refused_at_both_ends() {
    let listener = listener(Options::default());
    let address = listener.address().to_string();
    listener.set_epoch(4);
    let connect = |epoch| {
        let identity = Identity::new("rank", 0, epoch);
        connect(&address, &token(), &identity, Options::default(), soon())
    };
    assert!(matches!(connect(3), Err(WireError::WrongEpoch { expected: 4, .. })));
    let error = listener.accept(soon()).unwrap_err();
    assert!(matches!(error, WireError::WrongEpoch { expected: 4, .. }), "{error}");
    let connection = connect(4).unwrap();
    assert_eq!(listener.accept(soon()).unwrap().peer().identity.epoch, 4);
    drop(connection);
}

#[test]
fn a_missing_or_short_token_says_what_to_set() {
    // Of a child process: the environment of this one belongs to all tests.
    let child = |value: Option<&str>| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "handshake::token_of_the_environment", "--ignored", "--nocapture"]);
        command.env_remove("RLOOM_TOKEN").envs(value.map(|value| ("RLOOM_TOKEN", value)));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    // WireError::TokenMissing and WireError::TokenShort, and what their hints lead to.
    assert!(child(None).contains("the environment variable RLOOM_TOKEN is not set"));
    assert!(child(Some("short")).contains("fewer than 16 characters"));
    assert!(child(Some("8d1f0a5c8d1f0a5c8d1f0a5c8d1f0a5c")).contains("a token"));
}

#[test]
#[ignore = "runs in a child process"]
fn token_of_the_environment() {
    match Token::from_environment() {
        Ok(_) => println!("a token"),
        Err(error) => println!("{error}"),
    }
}

#[test]
fn nothing_at_the_address_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let identity = Identity::new("rank", 0, 0);
    let error = connect(&address, &token(), &identity, Options::default(), soon()).unwrap_err();
    assert!(matches!(error, WireError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&address), "{error}");
}

#[test]
fn frames_pass_right_after_the_handshake() {
    let (connecting, accepting) = pair(Options::default(), Options::default());
    connecting.send(&Frame::new(1, 2, "{}"), soon()).unwrap();
    assert_eq!(accepting.receive(soon()).unwrap(), Frame::new(1, 2, "{}"));
}

#[test]
fn streams_of_a_role_carry_plain_bytes_after_the_handshake() {
    let (sender, arrived) = std::sync::mpsc::sync_channel(8);
    let take = Box::new(move |peer: Peer, stream| sender.send((peer.identity, stream)).unwrap());
    let streams = Streams { role: "relay", take };
    let identity = Identity::new("controller", 0, 0);
    // No beat would be in time.
    let options = Options { lease: Duration::from_millis(100), ..Options::default() };
    let listener = Listener::bind_with("127.0.0.1:0", token(), identity, options, Some(streams)).unwrap();
    let address = listener.address().to_string();
    let dial = |token: &Token, role| {
        connect_stream(&address, token, &Identity::new(role, 9, 0), Options::default(), soon())
    };
    let mut connecting = dial(&token(), "relay").unwrap();
    let (identity, mut accepting) = arrived.recv_timeout(Duration::from_mins(2)).unwrap();
    assert_eq!((identity.role.as_str(), identity.index), ("relay", 9));
    for stream in [&connecting, &accepting] {
        // Those of the handshake would end a quiet connection.
        assert_eq!((stream.read_timeout().unwrap(), stream.write_timeout().unwrap()), (None, None));
        assert!(stream.nodelay().unwrap());
    }
    std::thread::sleep(2 * options.lease);
    for (from, to) in [(true, &b"there"[..]), (false, b"back!")] {
        let (one, other) =
            if from { (&mut connecting, &mut accepting) } else { (&mut accepting, &mut connecting) };
        one.write_all(to).unwrap();
        let mut bytes = [0; 5];
        other.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, to);
    }
    drop(connecting);
    assert_eq!(accepting.read(&mut [0]).unwrap(), 0);
    // Neither a stranger nor another role gets there.
    let error = dial(&Token::random().unwrap(), "relay").unwrap_err();
    assert!(matches!(error, WireError::WrongToken { .. }), "{error}");
    drop(dial(&token(), "rank").unwrap());
    assert_eq!(listener.accept(soon()).unwrap().peer().identity.role, "rank");
    assert!(arrived.try_recv().is_err());
}
