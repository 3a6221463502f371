//! Peers that send garbage, nothing, or half of what they announce.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rloom_wire::{Frame, Identity, Listener, Options, WireError, connect};

use crate::{dial, listener, soon, token};

/// Waits for the message of a refused connection.
fn refusal(listener: &Listener) -> String {
    loop {
        match listener.accept(Instant::now() + Duration::from_millis(10)) {
            Err(WireError::NobodyConnected { refused, .. }) if refused.is_empty() => {}
            accepted => return accepted.unwrap_err().to_string(),
        }
    }
}

#[test]
fn garbage_is_refused() {
    let listener = listener(Options::default());
    let mut beginnings: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"rloom w0 and more".to_vec(),
        [b"rloom w1".as_slice(), &u64::MAX.to_le_bytes()].concat(),
    ];
    for message in ["{}", "null", "{\"hello\":{}}", "\"wrong_token\""] {
        beginnings.push([b"rloom w1".to_vec(), Frame::new(0, 0, message).encode().unwrap()].concat());
    }
    for beginning in beginnings {
        let mut stream = TcpStream::connect(listener.address()).unwrap();
        stream.write_all(&beginning).unwrap();
        let refused = refusal(&listener);
        assert!(refused.contains("does not speak the protocol"), "{refused}");
    }
    let stream = TcpStream::connect(listener.address()).unwrap();
    stream.shutdown(Shutdown::Both).unwrap();
    assert!(refusal(&listener).contains("does not speak the protocol"));
}

#[test]
fn silence_ends_with_the_handshake_timeout() {
    let options = Options { handshake: Duration::from_millis(200), ..Options::default() };
    let listener = listener(options);
    let silent = TcpStream::connect(listener.address()).unwrap();
    assert!(refusal(&listener).contains("did not finish the handshake within 0.2 s"));
    drop(silent);
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = mute.local_addr().unwrap().to_string();
    let error = connect(&address, &token(), &Identity::new("rank", 0, 0), options, soon()).unwrap_err();
    assert!(matches!(error, WireError::HandshakeTimeout { .. }), "{error}");
}

#[test]
fn single_bytes_do_not_extend_the_handshake() {
    let listener = listener(Options { handshake: Duration::from_millis(300), ..Options::default() });
    let mut slow = TcpStream::connect(listener.address()).unwrap();
    let writing = std::thread::spawn(move || {
        for byte in b"rloom w1".iter().chain(&1000_u64.to_le_bytes()).chain(&[b' '; 10_000]) {
            if slow.write_all(&[*byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert!(refusal(&listener).contains("did not finish the handshake"));
    writing.join().unwrap();
}

#[test]
fn strangers_that_stay_silent_delay_nobody() {
    let listener = listener(Options { handshake: Duration::from_mins(10), ..Options::default() });
    let _silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(listener.address()).unwrap()).collect();
    let connection = dial(&listener, Options::default());
    listener.accept(soon()).unwrap();
    drop(connection);
}

#[test]
fn too_many_handshakes_are_refused_and_end() {
    let listener = listener(Options { handshake: Duration::from_mins(10), ..Options::default() });
    let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(listener.address()).unwrap()).collect();
    assert!(refusal(&listener).contains("128 other connections are in their handshake"));
    drop(silent);
    // The places are free again.
    let identity = Identity::new("rank", 0, 0);
    let address = listener.address().to_string();
    while connect(&address, &token(), &identity, Options::default(), soon()).is_err() {}
    listener.accept(soon()).unwrap();
}

/// An authenticated peer behind a relay that forwards `count` bytes after the handshake's.
fn cut_after(listener: &Listener, count: usize) -> TcpStream {
    let relay = TcpListener::bind("127.0.0.1:0").unwrap();
    let relayed = relay.local_addr().unwrap().to_string();
    let to = listener.address();
    let connecting = std::thread::spawn(move || {
        let options = Options { beat: Duration::from_hours(1), ..Options::default() };
        let connection = connect(&relayed, &token(), &Identity::new("rank", 1, 0), options, soon()).unwrap();
        let message = "x".repeat(10_000);
        connection.send(&Frame::new(0, 0, message), soon()).unwrap();
        // Held until the relay has cut the connection.
        let _ = connection.receive(soon());
    });
    let (client, _) = relay.accept().unwrap();
    let server = TcpStream::connect(to).unwrap();
    let (mut from, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
    std::thread::spawn(move || std::io::copy(&mut from, &mut back));
    let mut sent = 0;
    let mut buffer = vec![0; count];
    while sent < count {
        let read = (&client).read(&mut buffer[..count - sent]).unwrap();
        (&server).write_all(&buffer[..read]).unwrap();
        sent += read;
    }
    server.shutdown(Shutdown::Write).unwrap();
    client.shutdown(Shutdown::Both).unwrap();
    connecting.join().unwrap();
    server
}

#[test]
fn a_stream_that_ends_inside_a_frame_is_named() {
    let listener = listener(Options::default());
    let _stream = cut_after(&listener, 8000);
    let connection = listener.accept(soon()).unwrap();
    let error = connection.receive(soon()).unwrap_err();
    assert!(matches!(error, WireError::Cut { .. }), "{error}");
    assert!(error.to_string().contains("rank 1 at 127.0.0.1"), "{error}");
}
