//! Throughput of many sessions over HTTP, against the same turns submitted to the engine in process.
//!
//!     cargo bench --bench agent_sessions [-- SESSIONS TURNS ROUNDS]

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "it prints its measurements, and ends by panicking"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use rloom_core::{PolicyId, PolicyVersion, Purpose, RandomKey, SampleKey, Ticket};
use rloom_engine::{GenerateRequest, OnUpdate, RolloutEngine, RolloutSettings, SamplingSettings};
use rloom_model::{Family, Model, NewModel};
use rloom_run::assembly;
use rloom_serve::{
    ServeSettings, ServedModel, Server, SessionSettings, SessionSpec, SessionStatus, Sessions, listen,
};
use rloom_text::{CharacterSettings, Tokenizer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Sampled tokens of a turn; none of them ends it.
const NEW: usize = 32;
/// Characters of the first prompt and of each observation, a token each.
const PROMPT: usize = 64;
const OBSERVATION: usize = 24;
const CONTEXT: usize = 1024;

const TEMPLATE: &str = "{% for message in messages %}{{ message.content }}{% endfor %}";

fn tokenizer() -> Tokenizer {
    let alphabet = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let settings =
        CharacterSettings { chat_template: Some(TEMPLATE.to_owned()), ..CharacterSettings::new(alphabet) };
    Tokenizer::characters(&settings).unwrap()
}

fn sampling() -> SamplingSettings {
    SamplingSettings { max_new_tokens: NEW, ..SamplingSettings::default() }
}

fn text(session: u64, turn: u64, length: usize) -> String {
    let number = session * 1000 + turn;
    format!("{number}").chars().cycle().take(length).collect()
}

/// The turns of a session, submitted to the engine.
async fn in_process<E: RolloutEngine>(engine: Arc<E>, session: u64, turns: u64) -> usize {
    let tokenizer = tokenizer();
    let mut tokens = tokenizer.encode(&text(session, 0, PROMPT), false).unwrap();
    let mut sampled = 0;
    for turn in 1..=turns {
        let key = RandomKey::new(1, 0, Purpose::Rollout, session);
        let request = GenerateRequest {
            session: Some(session),
            ..GenerateRequest::new(key, tokens.clone(), sampling())
        };
        let generation = engine.generate(request).await.unwrap();
        sampled += generation.tokens.len();
        tokens.extend(generation.tokens);
        tokens.extend(tokenizer.encode(&text(session, turn, OBSERVATION), false).unwrap());
    }
    sampled
}

/// The turns of a session, as an agent makes them.
async fn over_http(address: String, path: String, session: u64, turns: u64) {
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let mut messages = vec![json!({"role": "user", "content": text(session, 0, PROMPT)})];
    for turn in 1..=turns {
        let body = json!({"model": "policy", "messages": messages}).to_string();
        let head = format!(
            "POST {path}/v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).await.unwrap();
        let answer = read(&mut stream).await;
        messages.push(json!({"role": "assistant", "content": answer["choices"][0]["message"]["content"]}));
        messages.push(json!({"role": "user", "content": text(session, turn, OBSERVATION)}));
    }
}

/// Reads an answer with a length.
async fn read(stream: &mut TcpStream) -> Value {
    let mut bytes = Vec::new();
    loop {
        assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "the server closed the connection");
        let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&bytes[..head]).to_lowercase();
        assert!(text.starts_with("http/1.1 200"), "{text}: {}", String::from_utf8_lossy(&bytes[head..]));
        let (_, length) = text.split_once("content-length: ").unwrap();
        let length: usize = length.lines().next().unwrap().trim().parse().unwrap();
        if bytes.len() == head + 4 + length {
            return serde_json::from_slice(&bytes[head + 4..]).unwrap();
        }
    }
}

fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap_or(0) >> 10
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let numbers: Vec<u64> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let number = |place: usize, default| numbers.get(place).copied().unwrap_or(default);
    let (sessions, turns, rounds) = (number(0, 256), number(1, 8), number(2, 5));
    let ctx = rloom_run::context(0).unwrap();
    let tokenizer = tokenizer();
    let shape = NewModel {
        family: Family::Qwen3,
        layers: 4,
        hidden_size: 256,
        heads: 8,
        kv_heads: Some(4),
        intermediate_size: 704,
        max_positions: CONTEXT,
        head_dim: None,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-6,
        tie_embeddings: true,
        initializer_range: 0.08,
    };
    let config = shape.config(tokenizer.vocab_size()).unwrap();
    let engine =
        assembly::rollout_engine(&config, &ctx, &RolloutSettings::default(), Some(tokenizer.clone()));
    let engine = Arc::new(engine.unwrap());
    let driver = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let weights = assembly::publish(&ctx, &Model::init(&config, 0), PolicyVersion(0));
    driver.block_on(engine.load(&weights, OnUpdate::Finish)).unwrap();

    let model = ServedModel {
        name: "policy".to_owned(),
        tokenizer,
        format: None,
        sampling: sampling(),
        stop_tokens: Arc::from([]),
        context: CONTEXT,
        seed: 1,
    };
    let registry = Sessions::new(Arc::new(model), SessionSettings::default());
    // As in a run: a thread and a runtime of its own.
    let serving = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = serving.block_on(listen("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let limits = ServeSettings { max_requests: 1024, max_connections: 1024, ..ServeSettings::default() };
    let server = Server::for_sessions(listener, registry.clone(), limits, |_| {});
    let stopper = server.stopper();
    let server = std::thread::spawn(move || serving.block_on(server.run()));

    println!("{sessions} sessions of {turns} turns of {NEW} tokens, {} threads", ctx.threads());
    let (mut direct, mut served) = (Vec::new(), Vec::new());
    for round in 0..=rounds {
        let started = Instant::now();
        let sampled = driver.block_on(async {
            let mut all = JoinSet::new();
            for session in 0..sessions {
                all.spawn(in_process(Arc::clone(&engine), session, turns));
            }
            all.join_all().await.into_iter().sum::<usize>()
        });
        let own = sampled as f64 / started.elapsed().as_secs_f64();

        let started = Instant::now();
        let sampled = driver.block_on(async {
            let mut all = JoinSet::new();
            let mut open = Vec::new();
            for session in 0..sessions {
                let spec = SessionSpec {
                    sampler: Arc::clone(&engine) as _,
                    sampling: sampling(),
                    random: RandomKey::new(1, 0, Purpose::Rollout, session),
                    key: SampleKey { ticket: Ticket(session), ..SampleKey::default() },
                    policy: PolicyId::MAIN,
                    group: None,
                    priority: 0,
                };
                let session_of = registry.open(spec).unwrap();
                all.spawn(over_http(address.clone(), session_of.path(), session, turns));
                open.push(session_of);
            }
            all.join_all().await;
            let mut sampled = 0;
            for session in &mut open {
                session.close(SessionStatus::Failed { message: "measured".to_owned() });
                let end = session.ended().await;
                assert_eq!((end.segments.len(), end.calls), (1, turns), "a conversation is one segment");
                sampled += end.segments[0].policy_tokens();
            }
            sampled
        });
        let other = sampled as f64 / started.elapsed().as_secs_f64();
        assert_eq!(sampled as u64, sessions * turns * NEW as u64);
        println!(
            "round {round}: in process {own:.0} tokens/s, over HTTP {other:.0} tokens/s, ratio {:.3}; {} MiB resident",
            other / own,
            resident_mib()
        );
        // The first round warms up.
        if round > 0 {
            direct.push(own);
            served.push(other / own);
        }
    }
    println!("median: in process {:.0} tokens/s, ratio {:.3}", median(direct), median(served));
    stopper.stop();
    let _ = server.join();
    std::thread::sleep(Duration::from_millis(10));
}
