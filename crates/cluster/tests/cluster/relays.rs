//! Relayed connections: bytes, ends, and failures of each side.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rloom_cluster::Relay;
use rloom_wire::{Identity, Options, Token, connect_stream};

use crate::{Machine, TOKEN, soon};

const MINUTE: Duration = Duration::from_mins(2);

/// A server on the node that calls `serve` for each connection, and its relay.
fn relayed(machine: &Machine, serve: fn(&TcpStream)) -> Relay {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || serve(&stream.unwrap()));
        }
    });
    let relay = machine.node.relay(port).unwrap();
    assert_ne!(relay.address().port(), port, "relayed, not direct");
    relay
}

fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(MINUTE)).unwrap();
    stream.set_write_timeout(Some(MINUTE)).unwrap();
    stream
}

/// Sends every byte back, as it arrives.
fn echo(stream: &TcpStream) {
    let _ = std::io::copy(&mut &*stream, &mut &*stream);
    let _ = stream.shutdown(Shutdown::Write);
}

/// One exchange with [`echo`].
fn exchange(mut stream: &TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    let mut reply = vec![0; bytes.len()];
    stream.read_exact(&mut reply).unwrap();
    assert_eq!(reply, bytes);
}

/// True for the error of a connection that was reset; false for its end.
fn is_reset(mut stream: &TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(count) => {
            assert_eq!(count, 0);
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            true
        }
    }
}

#[test]
fn bytes_pass_in_both_directions_at_once() {
    let machine = Machine::new();
    let relay = relayed(&machine, echo);
    let stream = dial(relay.address());
    let sent: Vec<u8> =
        (0..8_u32 << 20).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (mut sending, bytes) = (stream.try_clone().unwrap(), sent.clone());
    let sender = std::thread::spawn(move || {
        sending.write_all(&bytes).unwrap();
        sending.shutdown(Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    (&stream).read_to_end(&mut received).unwrap();
    sender.join().unwrap();
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
}

#[test]
fn a_request_that_ends_gets_its_reply() {
    let machine = Machine::new();
    let relay = relayed(&machine, |mut stream| {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).unwrap();
        request.reverse();
        stream.write_all(&request).unwrap();
    });
    let mut stream = dial(relay.address());
    stream.write_all(b"abc").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "cba");
}

#[test]
fn a_server_may_end_first() {
    let machine = Machine::new();
    let relay = relayed(&machine, |mut stream| {
        stream.write_all(b"hello").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"thanks");
    });
    let mut stream = dial(relay.address());
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "hello");
    stream.write_all(b"thanks").unwrap();
}

#[test]
fn hundreds_of_connections_are_open_at_once() {
    let machine = Machine::new();
    let relay = relayed(&machine, echo);
    let streams: Vec<TcpStream> = (0..256).map(|_| dial(relay.address())).collect();
    for round in 0..3_u32 {
        for (index, stream) in streams.iter().enumerate() {
            exchange(stream, format!("{round} of {index}").as_bytes());
        }
    }
}

#[test]
fn a_port_without_a_server_resets() {
    let machine = Machine::new();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let relay = machine.node.relay(port).unwrap();
    assert!(is_reset(&dial(relay.address())));
    // The relay goes on.
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    std::thread::spawn(move || listener.incoming().for_each(|stream| echo(&stream.unwrap())));
    exchange(&dial(relay.address()), b"now");
}

#[test]
fn a_broken_server_is_no_end() {
    let machine = Machine::new();
    let relay = relayed(&machine, |mut stream| {
        // Closed with unread bytes: the system resets the connection.
        stream.read_exact(&mut [0]).unwrap();
    });
    let mut stream = dial(relay.address());
    stream.write_all(&[7; 64]).unwrap();
    assert!(is_reset(&stream));
}

#[test]
fn a_client_that_is_gone_ends_the_connection_of_the_server() {
    let machine = Machine::new();
    let relay = relayed(&machine, |mut stream| {
        let mut request = [0; 4];
        stream.read_exact(&mut request).unwrap();
        // Ends once the client is gone, or the test hangs.
        while stream.write_all(&[0; 4096]).is_ok() {}
        std::fs::write(std::env::temp_dir().join(format!("relays-{}", std::process::id())), "").unwrap();
    });
    let mut stream = dial(relay.address());
    stream.write_all(b"data").unwrap();
    stream.read_exact(&mut [0; 64]).unwrap();
    drop(stream);
    let path = std::env::temp_dir().join(format!("relays-{}", std::process::id()));
    let deadline = soon();
    while !path.exists() {
        assert!(std::time::Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::remove_file(path).unwrap();
}

static SENT: AtomicUsize = AtomicUsize::new(0);

#[test]
fn a_slow_client_holds_the_server_back() {
    // More than the buffers of the system hold on the way.
    const LIMIT: usize = 256 << 20;
    let machine = Machine::new();
    let relay = relayed(&machine, |mut stream| {
        while let Ok(count) = stream.write(&[0; 4096]) {
            SENT.fetch_add(count, Ordering::SeqCst);
        }
    });
    let stream = dial(relay.address());
    let mut before = 0;
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let sent = SENT.load(Ordering::SeqCst);
        assert!(sent < LIMIT, "nothing holds the server back");
        if sent > 0 && sent == before {
            break;
        }
        before = sent;
    }
    // All of it arrives.
    let mut rest = before;
    let mut buffer = vec![0; 1 << 20];
    while rest > 0 {
        rest -= (&stream).read(&mut buffer[..rest.min(1 << 20)]).unwrap();
    }
}

#[test]
fn the_loss_of_the_node_resets_its_connections() {
    let mut machine = Machine::new();
    let relay = relayed(&machine, echo);
    let streams: Vec<TcpStream> = (0..8).map(|_| dial(relay.address())).collect();
    for stream in &streams {
        exchange(stream, b"before");
    }
    machine.daemon.0.kill().unwrap();
    assert!(streams.iter().all(is_reset));
    assert!(machine.node.wait_lost(soon()));
    let again = machine.node.relay(relay.address().port()).unwrap_err();
    assert!(matches!(again, rloom_cluster::ClusterError::NodeLost { .. }), "{again}");
    assert_port_closes(relay.address());
}

#[test]
fn a_dropped_relay_closes_its_port_and_its_connections() {
    let machine = Machine::new();
    let relay = relayed(&machine, echo);
    let stream = dial(relay.address());
    exchange(&stream, b"before");
    let address = relay.address();
    drop(relay);
    assert_port_closes(address);
    assert!(is_reset(&stream));
    // The node itself goes on.
    let relay = relayed(&machine, echo);
    exchange(&dial(relay.address()), b"another relay");
}

#[test]
fn a_connection_that_was_not_asked_for_is_closed() {
    let machine = Machine::new();
    let relay = relayed(&machine, echo);
    let (address, token) = (machine.listener.address().to_string(), Token::new(TOKEN).unwrap());
    let identity = Identity::new("relay", 4711, 0);
    let mut stream = connect_stream(&address, &token, &identity, Options::default(), soon()).unwrap();
    assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)));
    exchange(&dial(relay.address()), b"asked for");
}

/// Waits until nothing listens at `address`. A process that another test is starting holds a copy of the listening
/// socket from `fork` to `exec`, so that the port may outlive the relay by that moment.
fn assert_port_closes(address: SocketAddr) {
    let deadline = soon();
    loop {
        match TcpStream::connect(address) {
            Ok(_) => assert!(Instant::now() < deadline, "the port is still open"),
            Err(error) => return assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
