//! A server with the training API over a small model.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rloom_embedded::{EmbeddedRolloutEngine, publish_model};
use rloom_engine::{OnUpdate, RolloutEngine, RolloutSettings, SamplingSettings};
use rloom_model::{Dtype, GenerationConfig, Model, NewModel};
use rloom_ops::Ctx;
use rloom_serve::{ServeSettings, ServedModel, Server, Stopper, listen};
use rloom_text::Tokenizer;
use rloom_train_api::{BaseModel, TrainApi, TrainApiSettings, TrainedWeights};
use serde_json::json;
use tempfile::TempDir;

/// Name of the model that is trained.
pub(crate) const MODEL: &str = "tiny";
/// Longest sequence of the model.
pub(crate) const CONTEXT: usize = 64;

/// A model with random weights and its tokenizer.
pub(crate) fn base() -> BaseModel {
    let tokenizer = Tokenizer::characters(
        &serde_json::from_value(json!({"alphabet": "0123456789+-*/=abcdefghij"})).unwrap(),
    )
    .unwrap();
    let new: NewModel = serde_json::from_value(json!({
        "layers": 2, "hidden_size": 16, "heads": 2, "intermediate_size": 32, "max_positions": CONTEXT,
    }))
    .unwrap();
    let mut model = Model::init(&new.config(tokenizer.vocab_size()).unwrap(), 7);
    let eos = tokenizer.eos_ids().to_vec();
    model.set_special_tokens(tokenizer.bos_id(), &eos, tokenizer.pad_id());
    BaseModel {
        names: vec![MODEL.to_owned()],
        model: Arc::new(model),
        generation: GenerationConfig::new(tokenizer.bos_id(), eos.clone(), tokenizer.pad_id()),
        tokenizer,
        stop_tokens: eos.into(),
        ctx: Ctx::new(2).unwrap(),
    }
}

/// A server that runs until it is dropped.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) base: BaseModel,
    pub(crate) api: Arc<TrainApi>,
    /// Lines of the log.
    pub(crate) log: Arc<Mutex<Vec<String>>>,
    folder: TempDir,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    /// Trains all weights.
    pub(crate) fn start() -> Self {
        Self::with(TrainApiSettings::default())
    }

    /// As [`start`](Self::start), with these limits.
    pub(crate) fn with(settings: TrainApiSettings) -> Self {
        Self::training(TrainedWeights::All, Dtype::F32, settings)
    }

    /// Trains adapters.
    pub(crate) fn adapters(dtype: Dtype) -> Self {
        Self::training(TrainedWeights::Adapters, dtype, TrainApiSettings::default())
    }

    pub(crate) fn training(weights: TrainedWeights, dtype: Dtype, mut settings: TrainApiSettings) -> Self {
        let (mut base, folder) = (base(), tempfile::tempdir().unwrap());
        // Adapters name the folder of their base.
        let own = folder.path().join("base");
        std::fs::create_dir(&own).unwrap();
        base.model.save(&own, &base.generation).unwrap();
        base.model = Arc::new(match weights {
            TrainedWeights::Adapters => Model::load_frozen(&own, dtype).unwrap(),
            TrainedWeights::All => Model::load(&own).unwrap().with_dtype(dtype),
        });
        settings.weights = weights;
        let api = Arc::new(TrainApi::new(base.clone(), folder.path().join("checkpoints"), settings).unwrap());
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let (sender, receiver) = std::sync::mpsc::channel();
        let (own, own_api, own_log) = (base.clone(), Arc::clone(&api), Arc::clone(&log));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let server = serve(&own, own_log).await.with_extension(own_api);
                sender.send((server.address().unwrap(), server.stopper())).unwrap();
                server.run().await;
            });
        });
        let (address, stopper) = receiver.recv().unwrap();
        Self { address, base, api, log, folder, stopper, thread: Some(thread) }
    }

    /// Folder of the checkpoints.
    pub(crate) fn checkpoints(&self) -> std::path::PathBuf {
        self.folder.path().join("checkpoints")
    }

    /// Writes the base model to a folder.
    pub(crate) fn save_base(&self, folder: &Path) {
        self.base.model.save(folder, &self.base.generation).unwrap();
        self.base.tokenizer.save(folder).unwrap();
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stopper.stop();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the server panicked");
    }
}

async fn serve(base: &BaseModel, log: Arc<Mutex<Vec<String>>>) -> Server {
    let settings = RolloutSettings { lanes: 1, kv_memory_mib: 1, ..RolloutSettings::default() };
    let engine = EmbeddedRolloutEngine::new(base.model.config(), &base.ctx, &settings, None).unwrap();
    let weights = publish_model(rloom_core::PolicyId::MAIN, rloom_core::PolicyVersion(0), &base.model);
    engine.load(&weights, OnUpdate::Finish).await.unwrap();
    let model = ServedModel {
        name: MODEL.to_owned(),
        tokenizer: base.tokenizer.clone(),
        format: None,
        sampling: SamplingSettings::default(),
        stop_tokens: Arc::clone(&base.stop_tokens),
        context: CONTEXT,
        seed: 0,
    };
    let listener = listen("127.0.0.1", 0).await.unwrap();
    let log = move |exchange: &rloom_serve::Exchange| log.lock().unwrap().push(exchange.to_string());
    Server::new(listener, model, Arc::new(engine), None, ServeSettings::default(), log)
}
