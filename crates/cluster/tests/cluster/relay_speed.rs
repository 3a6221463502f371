//! A measurement of relayed beside direct connections, by hand:
//! `cargo test --release -p rloom-cluster --test cluster relay_speed -- --ignored --nocapture --skip server`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Instant;

use rloom_cluster::ProcessSpec;

use crate::{Machine, soon, this, wait_for_output};

const PORT: &str = "RLOOM_TEST_PORT";

/// Sizes of a reply: of a health check, of a short completion, of a long one with log-probabilities, and of a stream.
const REPLIES: [usize; 4] = [64, 4 << 10, 256 << 10, 16 << 20];

/// An HTTP server with connections that stay open; the path is the size of the reply.
fn serve(stream: &TcpStream) {
    stream.set_nodelay(true).unwrap();
    let mut requests = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    let body = vec![b'x'; 16 << 20];
    loop {
        line.clear();
        if requests.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        let size: usize = line.split(['/', ' ']).nth(2).unwrap().parse().unwrap();
        while line.trim() != "" {
            line.clear();
            requests.read_line(&mut line).unwrap();
        }
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {size}\r\n\r\n");
        (&*stream).write_all(&[head.as_bytes(), &body[..size]].concat()).unwrap();
    }
}

#[test]
#[ignore = "the server of the measurement"]
fn server() {
    if crate::is_guard() {
        return;
    }
    let port: u16 = std::env::var(PORT).unwrap().parse().unwrap();
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    println!("listening");
    for stream in listener.incoming() {
        std::thread::spawn(move || serve(&stream.unwrap()));
    }
}

/// Seconds of `count` requests, one after the other.
fn requests(stream: &TcpStream, size: usize, count: usize) -> f64 {
    let mut replies = BufReader::new(stream);
    let mut body = vec![0; size];
    let start = Instant::now();
    for _ in 0..count {
        (&mut &*stream).write_all(format!("GET /{size} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            replies.read_line(&mut line).unwrap();
        }
        replies.read_exact(&mut body).unwrap();
    }
    start.elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

#[test]
#[ignore = "a measurement"]
fn relayed_beside_direct() {
    let machine = Machine::new();
    let port = machine.node.free_port(soon()).unwrap();
    let spec = ProcessSpec {
        name: "server".to_owned(),
        program: this().path.to_str().unwrap().to_owned(),
        arguments: [this().arguments, vec!["relay_speed::server".to_owned()]].concat(),
        environment: [(PORT.to_owned(), port.to_string())].into(),
        ..ProcessSpec::default()
    };
    let process = machine.node.start(&spec, soon()).unwrap();
    wait_for_output(&process, "listening");
    let relay = machine.node.relay(port).unwrap();
    let address: SocketAddr = ([127, 0, 0, 1], port).into();
    for size in REPLIES {
        let streams = [dial(address), dial(relay.address())];
        let count = (2000 / (1 + size / 4096)).max(4);
        let rounds: Vec<[f64; 2]> = (0..21)
            .map(|round| {
                let mut seconds = [0.0; 2];
                for which in [round % 2, 1 - round % 2] {
                    seconds[which] = requests(&streams[which], size, count) / count as f64;
                }
                seconds
            })
            .collect();
        let [direct, relayed] = [0, 1].map(|which| median(rounds.iter().map(|round| round[which]).collect()));
        let ratio = median(rounds.iter().map(|[direct, relayed]| relayed / direct).collect());
        println!(
            "{size} bytes: direct {:.0} us, relayed {:.0} us, median ratio {ratio:.2}",
            direct * 1e6,
            relayed * 1e6
        );
    }
    let opening = |address| {
        let start = Instant::now();
        for _ in 0..50 {
            requests(&dial(address), 64, 1);
        }
        start.elapsed().as_secs_f64() / 50.0
    };
    let rounds: Vec<[f64; 2]> = (0..11).map(|_| [opening(address), opening(relay.address())]).collect();
    let [direct, relayed] = [0, 1].map(|which| median(rounds.iter().map(|round| round[which]).collect()));
    println!("a new connection each: direct {:.0} us, relayed {:.0} us", direct * 1e6, relayed * 1e6);
    let rounds: Vec<[f64; 2]> = (0..11).map(|_| [load(address), load(relay.address())]).collect();
    let [direct, relayed] = [0, 1].map(|which| median(rounds.iter().map(|round| round[which]).collect()));
    let ratio = median(rounds.iter().map(|[direct, relayed]| relayed / direct).collect());
    println!(
        "64 clients, 4 KiB: direct {direct:.0}, relayed {relayed:.0} requests/s, median ratio {ratio:.2}"
    );
}

/// Requests a second of 64 clients at once.
fn load(address: SocketAddr) -> f64 {
    let clients: Vec<TcpStream> = (0..64).map(|_| dial(address)).collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for client in &clients {
            scope.spawn(move || requests(client, 4096, 200));
        }
    });
    64.0 * 200.0 / start.elapsed().as_secs_f64()
}
