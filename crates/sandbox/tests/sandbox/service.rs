//! Programs that can reach one server: it, and nothing else.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::sync::mpsc;
use std::thread;

use rloom_sandbox::{SandboxError, Service, Stopper};

use super::*;

/// A server that returns what it receives, once the client has sent all.
struct Echo {
    service: Service,
    _folder: tempfile::TempDir,
}

fn answer(mut stream: impl Read + Write, shut: impl FnOnce()) {
    let mut received = Vec::new();
    if stream.read_to_end(&mut received).is_ok() {
        let _ = stream.write_all(&received);
    }
    shut();
}

fn echo() -> Echo {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let other = stream.try_clone().unwrap();
            thread::spawn(move || answer(stream, || drop(other.shutdown(Shutdown::Both))));
        }
    });
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let socket = folder.path().join("socket");
    let listener = UnixListener::bind(&socket).unwrap();
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666)).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let other = stream.try_clone().unwrap();
            thread::spawn(move || answer(stream, || drop(other.shutdown(Shutdown::Both))));
        }
    });
    Echo { service: Service { port, socket }, _folder: folder }
}

/// A Python program that can reach the server, with its port in `PORT`.
fn client(echo: &Echo, text: &str) -> Option<Execution> {
    let preamble = "import os, socket, sys, threading\nlibc = None\n";
    let mut execution = script(&format!("{preamble}PORT = {}\n{text}", echo.service.port))?;
    execution.service = Some(echo.service.clone());
    Some(execution)
}

const EXCHANGE: &str = r#"
def exchange(content):
    with socket.create_connection(("127.0.0.1", PORT), 60) as connection:
        sender = threading.Thread(target=lambda: (connection.sendall(content), connection.shutdown(socket.SHUT_WR)))
        sender.start()
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
        sender.join()
    return b"".join(parts)
"#;

#[test]
fn a_program_reaches_its_server() {
    let echo = echo();
    let text = r#"
whole = bytes(range(256)) * 4096
assert exchange(whole) == whole
for number in range(100):
    assert exchange(str(number).encode()) == str(number).encode()
# One after another is open at the same time.
open_ones = [socket.create_connection(("127.0.0.1", PORT), 60) for _ in range(20)]
for number, one in enumerate(open_ones):
    one.sendall(bytes([number]))
for number, one in reversed(list(enumerate(open_ones))):
    one.shutdown(socket.SHUT_WR)
    assert one.recv(8) == bytes([number]), number
print("done")
"#;
    let Some(execution) = client(&echo, &format!("{EXCHANGE}{text}")) else { return };
    in_each_tier(|sandbox| assert_eq!(stdout(sandbox, &execution), "done\n", "{}", sandbox.tier()));
}

/// Attempts to reach more than the server. Without protection all of them work.
const ATTEMPTS: &[(&str, &str)] = &[
    ("another port", "socket.create_connection(('127.0.0.1', OTHER), 5)"),
    (
        "another port, sent with the first packet",
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM).sendto(b'x', 0x20000000, ('127.0.0.1', OTHER))",
    ),
    (
        "another port, over Multipath TCP",
        "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).connect(('127.0.0.1', OTHER))",
    ),
    ("listen", "socket.create_server(('127.0.0.1', 0))"),
    ("datagrams", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', OTHER))"),
    ("IPv6", "socket.socket(socket.AF_INET6, socket.SOCK_STREAM)"),
    ("the socket of the server", "socket.socket(socket.AF_UNIX).connect('FOLDER/socket')"),
    (
        "datagrams to a Unix socket",
        "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', 'FOLDER/datagrams')",
    ),
    ("netlink", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)"),
    ("files", "open('/etc/passwd').read()"),
    ("environments", "open(f'/proc/{CALLER}/environ', 'rb').read()"),
    ("processes", "os.kill(CALLER, 0)"),
];

#[test]
fn a_program_with_a_server_reaches_nothing_else() {
    let echo = echo();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = echo.service.socket.parent().unwrap();
    let _datagrams = UnixDatagram::bind(folder.join("datagrams")).unwrap();
    let list: Vec<String> = ATTEMPTS
        .iter()
        .map(|(name, code)| format!("({name:?}, {:?})", code.replace("FOLDER", folder.to_str().unwrap())))
        .collect();
    let text = format!(
        r#"
OTHER, CALLER = {}, {}
for name, code in [{}]:
    try:
        exec(code)
        print(name, "ALLOWED")
    except OSError as error:
        print(name, "blocked", error)
"#,
        other.local_addr().unwrap().port(),
        std::process::id(),
        list.join(",")
    );
    let Some(mut execution) = client(&echo, &text) else { return };
    in_each_tier(|sandbox| {
        let said = stdout(sandbox, &execution);
        assert_eq!(said.lines().count(), ATTEMPTS.len(), "{said}");
        for line in said.lines() {
            assert!(line.contains(" blocked "), "{}: {line}", sandbox.tier());
        }
    });
    execution.service = None;
    let unprotected = Sandbox::detect(&helper(), Choice::None).unwrap();
    for line in stdout(&unprotected, &execution).lines() {
        assert!(line.ends_with(" ALLOWED") || line.starts_with("another port, "), "a broken attempt: {line}");
    }
}

/// In namespaces the network is the program's own, so that the port alone does not decide.
#[test]
fn the_port_of_the_server_on_other_addresses_is_not_reached_from_namespaces() {
    let echo = echo();
    let listener = TcpListener::bind(("127.0.0.2", echo.service.port)).unwrap();
    let text = r#"
for address in ("127.0.0.2", "192.0.2.1"):
    try:
        socket.create_connection((address, PORT), 5)
        print("ALLOWED", address)
    except TimeoutError:
        print("no answer", address)
    except OSError:
        pass
"#;
    let Some(execution) = client(&echo, text) else { return };
    for sandbox in sandboxes().iter().filter(|sandbox| sandbox.tier() == rloom_sandbox::Tier::Namespaces) {
        assert_eq!(stdout(sandbox, &execution), "");
    }
    drop(listener);
}

#[test]
fn a_tier_is_chosen_that_reaches_the_server() {
    let echo = echo();
    for sandbox in sandboxes() {
        let choice = match sandbox.tier() {
            rloom_sandbox::Tier::Namespaces => Choice::Namespaces,
            _ => Choice::Landlock,
        };
        assert_eq!(Sandbox::detect_with(&helper(), choice, &echo.service).unwrap().tier(), sandbox.tier());
    }
    let missing = Service { socket: "/nowhere/socket".into(), ..echo.service };
    let found = Sandbox::detect_with(&helper(), Choice::Namespaces, &missing);
    let message = found.unwrap_err().to_string();
    assert!(message.contains("open the socket of the server") || message.contains("namespaces"), "{message}");
}

#[test]
fn output_is_read_while_a_program_runs_and_it_can_be_stopped() {
    in_each_tier(|sandbox| {
        let mut execution = shell("echo begun; echo to stderr >&2; sleep 50 & sleep 50");
        execution.passes_output = true;
        let stopper = Stopper::default();
        let (sender, receiver) = mpsc::channel();
        let own = stopper.clone();
        let read = move |output: &mut dyn Read| {
            let mut text = Vec::new();
            let mut buffer = [0; 64];
            while let Ok(count @ 1..) = output.read(&mut buffer) {
                text.extend_from_slice(&buffer[..count]);
                if text.windows(6).any(|part| part == b"stderr") && text.starts_with(b"begun") {
                    own.stop();
                }
            }
            let _ = sender.send(String::from_utf8(text).unwrap());
        };
        let result = sandbox.run_until(&execution, &stopper, read);
        assert_eq!(result.unwrap_err(), SandboxError::Stopped, "{}", sandbox.tier());
        assert_eq!(receiver.recv().unwrap(), "begun\nto stderr\n", "{}", sandbox.tier());
        // One that is stopped before it starts.
        assert_eq!(sandbox.run_until(&execution, &stopper, |_| {}).unwrap_err(), SandboxError::Stopped);
    });
}

#[test]
fn output_that_is_passed_on_has_no_limit_and_is_not_returned() {
    in_each_tier(|sandbox| {
        let mut execution = shell("head -c 3000000 /dev/zero; exit 5");
        execution.passes_output = true;
        let (sender, receiver) = mpsc::channel();
        let read = move |output: &mut dyn Read| {
            let mut bytes = Vec::new();
            let _ = output.read_to_end(&mut bytes);
            let _ = sender.send(bytes.len());
        };
        let outcome = sandbox.run_until(&execution, &Stopper::default(), read).unwrap();
        assert_eq!((outcome.ending, outcome.stdout.len()), (Ending::Exited(5), 0));
        assert_eq!(receiver.recv().unwrap(), 3_000_000);
    });
}
