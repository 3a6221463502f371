//! Stand-ins for the servers of vLLM and SGLang: the same endpoints, fields and states, a tiny model, and faults on demand.
//!
//! Requests may only have the fields of `tests/fields/*.json`, which `tests/fields/check.py` compares with the packages.

mod adapters;
pub(crate) mod faults;
mod generate;
pub(crate) mod gpu;
pub(crate) mod http;
pub(crate) mod model;
mod sglang;

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rloom_remote::Server;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::sleep;

use faults::{Fault, Faults};
use generate::Running;
use http::Request;
use model::{VOCABULARY, Weights};

/// Longest sequence of the stand-in.
pub(crate) const CONTEXT: usize = 512;

/// Protocol of a stand-in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Vllm,
    Sglang,
}

impl Protocol {
    /// Fields of requests and answers.
    fn fields(self) -> Value {
        let text = match self {
            Self::Vllm => include_str!("../../fields/vllm.json"),
            Self::Sglang => include_str!("../../fields/sglang.json"),
        };
        serde_json::from_str(text).unwrap()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Paused {
    Wait,
    Abort,
    Keep,
}

/// Memory that the server has given away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asleep {
    Nothing,
    Cache,
    All,
}

#[derive(Debug, Clone, PartialEq)]
enum Channel {
    Nccl(String),
    Ipc,
}

/// State of the server.
#[derive(Debug)]
pub(crate) struct World {
    protocol: Protocol,
    weights: Weights,
    pub(crate) label: String,
    /// Adapters by name.
    pub(crate) adapters: BTreeMap<String, Weights>,
    /// Largest rank of an adapter; 0 if the server serves none.
    pub(crate) max_adapter_rank: usize,
    /// Weights and label that were received and not finished.
    update: Option<(Option<Weights>, String)>,
    is_initialized: bool,
    /// Communicator with the trainer, or the form of what comes without one.
    channel: Option<Channel>,
    /// Memory that it has given away.
    asleep: Asleep,
    /// Processes that it says it has.
    pub(crate) workers: usize,
    /// Control requests in the order of their arrival, and what tests add.
    pub(crate) log: Arc<Mutex<Vec<String>>>,
    paused: Option<Paused>,
    pub(crate) running: BTreeMap<u64, Running>,
    next: u64,
    pub(crate) faults: Faults,
    /// Requests that were admitted at some time.
    pub(crate) admitted: u64,
    /// Requests whose client closed the connection.
    pub(crate) cancelled: u64,
    /// Requests by group, that is by the first token of the prompt.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Tokens per millisecond of each request.
    speed: usize,
    /// Further time of a request by its seed and its number of tokens.
    service: Option<fn(u64, usize) -> Duration>,
    /// Completions have the longest length that is asked for.
    has_whole_lengths: bool,
    max_num_seqs: usize,
}

impl World {
    fn resume(&mut self) {
        self.paused = None;
        for running in self.running.values_mut() {
            running.is_admitted = true;
        }
    }
}

/// A server on a thread of its own. Dropping it closes all connections, as if the process were killed.
#[derive(Debug)]
pub(crate) struct StandIn {
    pub(crate) url: String,
    pub(crate) world: Arc<Mutex<World>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Listens at a port. A connection of another test may use it for a moment if the system chose it earlier.
async fn bind(port: u16) -> TcpListener {
    let deadline = Instant::now() + Duration::from_mins(1);
    loop {
        match TcpListener::bind(("127.0.0.1", port)).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse && Instant::now() < deadline => {
                sleep(Duration::from_millis(20)).await;
            }
            listener => return listener.unwrap(),
        }
    }
}

impl StandIn {
    pub(crate) fn start() -> Self {
        Self::at(0, Protocol::Vllm)
    }

    /// A server at a port, 0 for any.
    pub(crate) fn at(port: u16, protocol: Protocol) -> Self {
        let world = Arc::new(Mutex::new(World {
            protocol,
            weights: Weights([0, 0]),
            label: "default".to_owned(),
            adapters: BTreeMap::new(),
            max_adapter_rank: 0,
            update: None,
            is_initialized: false,
            channel: None,
            asleep: Asleep::Nothing,
            workers: 1,
            log: Arc::default(),
            paused: None,
            running: BTreeMap::new(),
            next: 0,
            faults: Faults::default(),
            admitted: 0,
            cancelled: 0,
            prompts: Vec::new(),
            speed: 4,
            service: None,
            has_whole_lengths: false,
            max_num_seqs: 64,
        }));
        let (stop, stopped) = oneshot::channel::<()>();
        let (bound, address) = std::sync::mpsc::channel();
        let shared = Arc::clone(&world);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = bind(port).await;
                bound.send(listener.local_addr().unwrap()).unwrap();
                tokio::select! {
                    _ = stopped => {}
                    () = accept(listener, shared) => {}
                }
            });
        });
        let url = format!("http://{}", address.recv().unwrap());
        Self { url, world, stop: Some(stop), thread: Some(thread) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// A server of adapters up to rank 16.
    pub(crate) fn of_adapters(port: u16) -> Self {
        let stand_in = Self::at(port, Protocol::Vllm);
        stand_in.lock().max_adapter_rank = 16;
        stand_in
    }

    /// Lets a fault occur a number of times.
    pub(crate) fn fail(&self, fault: Fault, times: u32) {
        self.lock().faults.0.push((fault, times));
    }

    /// Tokens per millisecond of each request.
    pub(crate) fn set_speed(&self, speed: usize) {
        self.lock().speed = speed;
    }

    /// Lets each request take this time, by its seed and its number of tokens, and no time for the tokens themselves.
    pub(crate) fn set_service(&self, service: fn(u64, usize) -> Duration) {
        self.set_speed(usize::MAX);
        self.lock().service = Some(service);
    }

    /// Gives every completion the longest length that is asked for, at once.
    pub(crate) fn set_whole_lengths(&self) {
        self.set_speed(usize::MAX);
        self.lock().has_whole_lengths = true;
    }

    /// A client of it.
    pub(crate) fn server(&self) -> Server {
        let protocol = self.lock().protocol;
        match protocol {
            Protocol::Vllm => Server::vllm(&self.url).unwrap(),
            Protocol::Sglang => Server::sglang(&self.url).unwrap(),
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.url.rsplit(':').next().unwrap().parse().unwrap()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

async fn accept(listener: TcpListener, world: Arc<Mutex<World>>) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        tokio::spawn(serve(stream, Arc::clone(&world)));
    }
}

/// Serves one connection.
async fn serve(mut stream: TcpStream, world: Arc<Mutex<World>>) {
    let mut buffer = Vec::new();
    while let Some(request) = http::read(&mut stream, &mut buffer).await {
        let path = request.path.clone();
        let at = |fault: &Fault| {
            matches!(fault, Fault::Hangs(own) | Fault::ClosesWithin(own) | Fault::ClosesBefore(own)
                | Fault::Slow(own, _) | Fault::Status(own, _) | Fault::NoJson(own) if *own == path)
        };
        let fault = world.lock().unwrap().faults.occurs(at);
        match fault {
            Some(Fault::Hangs(_)) => {
                http::closed(&stream).await;
                return;
            }
            Some(Fault::ClosesBefore(_)) => return,
            Some(Fault::Slow(_, time)) => sleep(time).await,
            Some(Fault::Status(_, status)) => {
                http::write(&mut stream, status, b"{\"error\": \"as the test wants it\"}", 0).await;
                continue;
            }
            Some(Fault::NoJson(_)) => {
                http::write(&mut stream, 200, b"<html>a proxy's page</html>", 0).await;
                continue;
            }
            _ => {}
        }
        let answered = tokio::select! {
            // The client closes the connection: the request is cancelled.
            () = http::closed(&stream) => None,
            answer = answer(&world, request) => Some(answer),
        };
        let Some((status, body)) = answered else { return };
        let body = serde_json::to_vec(&body).unwrap();
        if matches!(fault, Some(Fault::ClosesWithin(_))) {
            return http::write(&mut stream, status, &body, body.len() / 2).await;
        }
        http::write(&mut stream, status, &body, 0).await;
    }
}

/// Checks that a request has known fields alone.
fn check_fields(fields: &Value, body: &Value, place: &str) {
    let known = |name: &str| fields.as_array().unwrap().iter().any(|field| field == name);
    for name in body.as_object().into_iter().flatten().map(|(name, _)| name) {
        assert!(known(name), "{place} has no field {name}");
    }
}

async fn answer(world: &Arc<Mutex<World>>, request: Request) -> (u16, Value) {
    let protocol = world.lock().unwrap().protocol;
    let fields = protocol.fields();
    let Request { method, path, query, body } = request;
    let Some(endpoint) = fields["endpoints"].get(format!("{method} {path}")) else {
        return (404, json!({ "detail": "Not Found" }));
    };
    check_fields(endpoint, &body, &path);
    check_fields(&fields["sampling_params"], &body["sampling_params"], "sampling_params");
    if body["cache_salt"].as_str().is_some_and(|salt| salt.is_empty() || salt.contains(['/', '@', '\\'])) {
        return (400, json!({ "error": { "message": "bad cache_salt", "code": 400 } }));
    }
    let ok = (200, json!({}));
    if method == "POST" && !path.ends_with("generate") && path != "/collective_rpc" {
        let log = Arc::clone(&world.lock().unwrap().log);
        log.lock().unwrap().push(if query.is_empty() { path.clone() } else { format!("{path}?{query}") });
    }
    if protocol == Protocol::Sglang {
        return sglang::answer(world, &path, &body).await;
    }
    match path.as_str() {
        "/health" => ok,
        "/collective_rpc" => {
            assert_eq!(body["method"], "rloom_describe");
            let world = world.lock().unwrap();
            let loaded = if world.label == "default" { "" } else { &world.label };
            let description = json!({
                "protocol": 3, "version": "0.32.0+cpu", "loaded": loaded, "full_softmax": true,
                "logprobs_mode": "processed_logprobs", "max_model_len": CONTEXT,
                "max_num_seqs": world.max_num_seqs, "vocabulary": VOCABULARY,
                "max_adapter_rank": world.max_adapter_rank,
            });
            (200, json!({ "results": vec![description; world.workers] }))
        }
        "/init_weight_transfer_engine" => {
            initialize(world, &fields, &body["init_info"]).await;
            ok
        }
        "/sleep" => {
            assert_eq!(query, "level=2&mode=abort");
            let mut world = world.lock().unwrap();
            if !world.faults.has(Fault::StaysAwake) {
                (world.asleep, world.paused) = (Asleep::All, Some(Paused::Abort));
                // Whatever is there afterwards, it is no model.
                world.weights = Weights([77, 78]);
            }
            ok
        }
        "/wake_up" => wake(&mut world.lock().unwrap(), &query),
        "/is_sleeping" => {
            let world = world.lock().unwrap();
            (200, json!({ "is_sleeping": world.paused.is_some() || world.asleep != Asleep::Nothing }))
        }
        "/weight_info" => (200, json!({ "weight_version": world.lock().unwrap().label })),
        "/update_weights" if body["update_info"]["chunk"].is_object() => {
            receive(world, &fields, &body["update_info"]).await
        }
        "/start_weight_update" | "/update_weights" | "/finish_weight_update" => {
            update(&mut world.lock().unwrap(), &path, &body)
        }
        "/v1/load_lora_adapter" | "/v1/unload_lora_adapter" | "/v1/models" => {
            adapters::answer(&mut world.lock().unwrap(), &path, &body)
        }
        "/pause" => {
            let mode = match query.as_str() {
                "mode=wait" => Paused::Wait,
                "mode=abort" => Paused::Abort,
                "mode=keep" => Paused::Keep,
                other => panic!("unknown pause mode: {other}"),
            };
            pause(world, mode).await;
            ok
        }
        "/resume" => {
            world.lock().unwrap().resume();
            ok
        }
        "/inference/v1/abort_requests" => {
            let ids: Vec<String> = serde_json::from_value(body["request_ids"].clone()).unwrap();
            for running in world.lock().unwrap().running.values_mut() {
                running.is_aborted |= ids.contains(&running.id);
            }
            ok
        }
        "/inference/v1/generate" => generate::generate(world, &body).await,
        _ => (404, json!({ "detail": "Not Found" })),
    }
}

/// Forgets a connection to the trainer's memory, and makes another one if it is asked to.
async fn initialize(world: &Mutex<World>, fields: &Value, info: &Value) {
    check_fields(&fields["init_info"], info, "init_info");
    let channel = info["backend"].as_str().map(|backend| {
        check_fields(&fields[format!("{backend}_init")], &info["info"], "info");
        assert_eq!(info["info"]["packed"], true);
        match backend {
            "nccl" => Channel::Nccl(info["info"]["nccl_unique_id_b64"].as_str().unwrap().to_owned()),
            "ipc" => Channel::Ipc,
            other => panic!("unknown backend: {other}"),
        }
    });
    {
        let mut world = world.lock().unwrap();
        world.is_initialized = true;
        world.channel.clone_from(&channel);
    }
    if let Some(Channel::Nccl(id)) = channel {
        assert_eq!(info["info"]["rank_offset"], 1);
        let size = info["info"]["world_size"].as_u64().unwrap() as usize;
        gpu::join(&id, 1);
        while !gpu::is_complete(&id, size) {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Takes a chunk of tensors: one of the seeds, or both.
async fn receive(world: &Mutex<World>, fields: &Value, info: &Value) -> (u16, Value) {
    check_fields(&fields["update_info"], info, "update_info");
    let chunk = &info["chunk"];
    let channel = world.lock().unwrap().channel.clone();
    let bytes = match &channel {
        None => return (500, json!({ "error": "no connection to the trainer's memory" })),
        Some(Channel::Nccl(id)) => {
            check_fields(&fields["nccl_update"], chunk, "chunk");
            loop {
                if let Some(bytes) = gpu::take(id) {
                    break bytes;
                }
                sleep(Duration::from_millis(1)).await;
            }
        }
        Some(Channel::Ipc) => {
            check_fields(&fields["ipc_update"], chunk, "chunk");
            gpu::opened(chunk["ipc_handles"]["GPU-0"]["handle"][0].as_str().unwrap())
        }
    };
    let mut world = world.lock().unwrap();
    let Some((new, label)) = &mut world.update else {
        return (500, json!({ "error": "a step of the update is missing" }));
    };
    let mut weights = new.unwrap_or(Weights([0, 0]));
    let names: Vec<usize> = serde_json::from_value::<Vec<String>>(chunk["names"].clone())
        .unwrap()
        .iter()
        .map(|name| gpu::NAMES.iter().position(|own| own == name).unwrap())
        .collect();
    assert_eq!(bytes.len(), 8 * names.len());
    for (place, bytes) in names.into_iter().zip(bytes.chunks(8)) {
        weights.0[place] = u64::from_le_bytes(bytes.try_into().unwrap());
    }
    *new = Some(weights);
    info["label"].as_str().unwrap().clone_into(label);
    (200, json!({}))
}

fn wake(world: &mut World, query: &str) -> (u16, Value) {
    match (query, world.asleep) {
        ("tags=weights", Asleep::All) => world.asleep = Asleep::Cache,
        ("tags=kv_cache", Asleep::Cache) => (world.asleep, world.paused) = (Asleep::Nothing, None),
        (query, asleep) => return (500, json!({ "error": format!("{query} while {asleep:?}") })),
    }
    (200, json!({ "status": "awake" }))
}

/// The three steps of an update; out of order they are errors, as in vLLM's worker.
fn update(world: &mut World, path: &str, body: &Value) -> (u16, Value) {
    let refused = |message: &str| (500, json!({ "error": message }));
    if !world.is_initialized {
        return refused("weight transfer is not initialized");
    }
    if world.asleep == Asleep::All {
        return refused("there is no memory for weights");
    }
    match (path, world.update.take()) {
        ("/start_weight_update", None) => world.update = Some((None, String::new())),
        ("/start_weight_update", active) => {
            world.update = active;
            return refused("an update is already active");
        }
        // What was received so far stays in the model, under the old label.
        ("/finish_weight_update", Some((new, _))) if body["weight_version"].is_null() => {
            world.weights = new.unwrap_or(world.weights);
        }
        ("/update_weights", Some(_)) => {
            let info = &body["update_info"];
            let Some(new) = Weights::read(Path::new(info["path"].as_str().unwrap())) else {
                return refused("cannot read the weights");
            };
            world.update = Some((Some(new), info["label"].as_str().unwrap().to_owned()));
        }
        ("/finish_weight_update", Some((Some(new), label))) => {
            assert_eq!(body["weight_version"], label.as_str());
            if world.faults.has(Fault::LoadsHalf) {
                world.weights.0[0] = new.0[0];
            } else if !world.faults.has(Fault::KeepsWeights) {
                world.weights = new;
            }
            if !world.faults.has(Fault::KeepsLabel) {
                world.label = label;
            }
        }
        _ => return refused("a step of the update is missing"),
    }
    (200, json!({ "message": "done" }))
}

async fn pause(world: &Mutex<World>, mode: Paused) {
    {
        let mut world = world.lock().unwrap();
        world.paused = Some(mode);
        for running in world.running.values_mut() {
            running.is_aborted |= mode == Paused::Abort && running.is_admitted;
        }
    }
    while mode == Paused::Wait && world.lock().unwrap().running.values().any(|running| running.is_admitted) {
        sleep(Duration::from_millis(1)).await;
    }
}
