//! Stand-ins of PyTorch ranks on GPUs, as threads that speak the protocol of `python/rloom/torch/rank.py`.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rloom_remote::{RankCommand, RankEnd, RankLauncher, RankProcess};
use rloom_wire::{Connection, Frame, Identity, Options, TOKEN_VARIABLE, Token, connect};
use serde_json::{Value, json};

use crate::stand_in::gpu;
use crate::stand_in::model::Weights;

/// Identifiers of communicators.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// What tests see and change of the ranks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shared {
    /// Jobs of rank 0, and what servers add.
    pub(crate) log: Arc<Mutex<Vec<String>>>,
    /// Rank 0 ends in the next broadcast.
    pub(crate) dies: Arc<AtomicBool>,
    /// Ranks refuse to leave a communicator.
    pub(crate) stays: Arc<AtomicBool>,
}

/// Starts ranks as threads.
#[derive(Debug)]
pub(crate) struct ThreadRanks(pub(crate) Shared);

impl RankLauncher for ThreadRanks {
    fn start(&self, command: &RankCommand) -> io::Result<Box<dyn RankProcess>> {
        let [_, _, address, rank, ranks, epoch] = &command.arguments[..] else { unreachable!() };
        let token = command.environment.iter().find(|(name, _)| name == TOKEN_VARIABLE).unwrap();
        let token = Token::new(&token.1).unwrap();
        let identity = Identity::new("rank", rank.parse().unwrap(), epoch.parse().unwrap());
        let deadline = Instant::now() + Duration::from_mins(2);
        let (address, ranks, shared) = (address.clone(), ranks.parse().unwrap(), self.0.clone());
        let thread = std::thread::spawn(move || {
            let connection = connect(&address, &token, &identity, Options::default(), deadline).unwrap();
            let rank = Rank {
                index: identity.index,
                ranks,
                connection,
                shared,
                weights: Weights::of(0),
                left: Vec::new(),
                packed: Vec::new(),
                ids: BTreeMap::new(),
            };
            rank.serve();
        });
        Ok(Box::new(RankThread(Some(thread))))
    }
}

#[derive(Debug)]
struct RankThread(Option<JoinHandle<()>>);

impl RankProcess for RankThread {
    fn ended(&mut self) -> Option<RankEnd> {
        let has_ended = self.0.as_ref().is_none_or(JoinHandle::is_finished);
        has_ended.then(|| RankEnd { status: "as the test wants it".to_owned(), was_killed: true })
    }

    fn request_stacks(&self) {}

    /// A thread ends when its connection does.
    fn kill(&mut self) {}

    fn stderr(&self) -> String {
        String::new()
    }
}

struct Rank {
    index: u32,
    ranks: usize,
    connection: Connection,
    shared: Shared,
    weights: Weights,
    /// Tensors that the transfer under way has yet to send.
    left: Vec<usize>,
    packed: Vec<u8>,
    /// Communicators by server.
    ids: BTreeMap<String, String>,
}

impl Rank {
    fn serve(mut self) {
        while let Ok(frame) = self.connection.receive(Instant::now() + Duration::from_mins(20)) {
            let asked: Value = frame.parse().unwrap();
            let job = asked["job"].as_str().unwrap();
            if self.index == 0 && job != "cancel" {
                let part = asked["part"].as_str().map(|part| format!(" {part}")).unwrap_or_default();
                self.shared.log.lock().unwrap().push(format!("{job}{part}"));
            }
            let answer = match job {
                "shutdown" => return,
                "cancel" => continue,
                "listen" => json!({ "port": 1 }),
                "open" => {
                    self.ids.clear();
                    json!({ "numeric_path": "threads", "repeats_bits": true, "layout": "packed", "has_gpus": true })
                }
                "digest" => json!({ "digest": self.weights.0[0] }),
                "restore" => {
                    self.weights = Weights::of(version_of(asked["folder"].as_str().unwrap()));
                    json!({})
                }
                "publish" => {
                    let file = Path::new(asked["folder"].as_str().unwrap()).join("weights.json");
                    if self.index == 0 {
                        std::fs::write(file, serde_json::to_vec(&self.weights).unwrap()).unwrap();
                    }
                    json!({ "files": [["weights.json", 1]] })
                }
                "park" => json!({}),
                "send" => match self.send(&asked) {
                    Some(answer) => answer,
                    None => return,
                },
                other => panic!("unknown job: {other}"),
            };
            let (epoch, job) = (frame.epoch, frame.job);
            let answer = Frame { epoch, job, message: answer.to_string(), tensors: Vec::new() };
            if self.connection.send(&answer, Instant::now() + Duration::from_mins(2)).is_err() {
                return;
            }
        }
    }

    /// A part of a transfer; `None` if the rank dies of it.
    fn send(&mut self, asked: &Value) -> Option<Value> {
        let is_nccl = asked["form"] == "nccl";
        match asked["part"].as_str().unwrap() {
            "channel" => {
                let id = format!("communicator {}", NEXT.fetch_add(1, Ordering::Relaxed));
                return Some(json!({ "unique_id": id }));
            }
            "join" if self.index == 0 && asked["channel"]["form"] == "nccl" => {
                let channel = &asked["channel"];
                let id = channel["unique_id"].as_str().unwrap().to_owned();
                let size = channel["world_size"].as_u64().unwrap() as usize;
                gpu::join(&id, 1);
                self.ids.insert(asked["receiver"].as_str().unwrap().to_owned(), id.clone());
                return Some(self.wait(|| gpu::is_complete(&id, size)));
            }
            "chunk" => {
                if asked["first"] == true {
                    self.left = vec![1, 0];
                }
                let Some(place) = self.left.pop() else { return Some(json!({ "chunk": null })) };
                self.packed = self.weights.0[place].to_le_bytes().to_vec();
                let mut chunk = json!({
                    "names": [gpu::NAMES[place]], "dtype_names": ["int64"], "shapes": [[1]], "tensor_sizes": [8],
                });
                if !is_nccl {
                    let handle = gpu::handle(self.weights.0[place].to_le_bytes());
                    chunk["ipc_handles"] =
                        json!({ "GPU-0": { "bytes": 8, "offset": 0, "handle": [handle] } });
                }
                return Some(json!({ "chunk": chunk }));
            }
            "broadcast" if self.index == 0 => {
                if self.shared.dies.load(Ordering::Relaxed) {
                    return None;
                }
                if is_nccl {
                    let id = &self.ids[asked["receiver"].as_str().unwrap()];
                    gpu::send(id, self.packed.clone());
                    return Some(self.wait(|| gpu::is_taken(id)));
                }
            }
            "leave" if self.shared.stays.load(Ordering::Relaxed) => {
                return Some(json!({ "error": { "kind": "transfer", "message": "cannot leave" } }));
            }
            "join" | "broadcast" | "leave" => {}
            other => panic!("unknown part: {other}"),
        }
        Some(json!({}))
    }

    /// Waits, as a collective does, for the other side or for the controller that gives it up.
    fn wait(&self, is_done: impl Fn() -> bool) -> Value {
        assert_eq!(self.ranks, 1, "an error of one rank of several is one of all");
        while !is_done() {
            if let Ok(frame) = self.connection.receive(Instant::now() + Duration::from_millis(1)) {
                assert_eq!(frame.parse::<Value>().unwrap()["job"], "cancel");
                return json!({ "error": { "kind": "transfer", "message": "the server has failed" } });
            }
        }
        json!({})
    }
}

/// The number at the end of a path.
fn version_of(folder: &str) -> u64 {
    folder.rsplit('-').next().unwrap().parse().unwrap()
}
