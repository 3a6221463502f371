//! `rloom serve`: an inference server with the APIs of OpenAI and Anthropic, and the training API of the `tinker` SDK.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use rloom_engine::{OnUpdate, PublishedPolicy, RolloutEngine, RolloutEngineSettings, ServerSettings};
use rloom_run::{Policy, assembly};
use rloom_serve::{ApiKey, ServeSettings, ServedModel, Server, listen};
use rloom_text::calls::CallFormat;
use rloom_train_api::{BaseModel, TrainApi, TrainApiSettings, TrainedWeights};
use serde_json::json;
use tokio::net::TcpListener;

use super::policy::{self, Use};
use crate::arguments::{Serve, ServerEngine};
use crate::failure::Failure;
use crate::output::{CYAN, FAINT, Output};
use crate::progress::downloads;
use crate::signals;

/// Variable of the environment with the key.
const KEY_VARIABLE: &str = "RLOOM_API_KEY";
/// Time without any of the servers at `--url` after which the command ends, in seconds.
const SERVER_WAIT_SECONDS: f64 = 120.0;
/// Prefix of all keys that clients of the training API send.
const TRAIN_KEY_PREFIX: &str = "tml-";
/// Connections of a server with the training API: clients keep one open for each result that they wait for.
const TRAIN_CONNECTIONS: usize = 2048;
/// Threads that tokenise prompts.
const PROMPT_THREADS: usize = 4;

pub(crate) fn run(arguments: &Serve, output: Output) -> Result<(), Failure> {
    let key = given_key(arguments)?;
    let computes_here = arguments.sampling.threads > 0 || arguments.sampling.dtype.is_some();
    if computes_here && !arguments.urls.is_empty() {
        return Err(Failure::usage_text("--threads and --dtype have no effect on the servers at --url"));
    }
    if arguments.max_requests == 0 {
        return Err(Failure::usage_text("--max-requests must be at least 1"));
    }
    if arguments.train_models == 0 {
        return Err(Failure::usage_text("--train-models must be at least 1"));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(PROMPT_THREADS)
        .build()
        .map_err(Failure::failed_text)?;
    runtime.block_on(serve(arguments, key, output))
}

async fn serve(arguments: &Serve, key: Option<ApiKey>, output: Output) -> Result<(), Failure> {
    // Before the model is read, which may take long.
    let listener = listen(&arguments.host, arguments.port).await.map_err(Failure::usage)?;
    let address = listener.local_addr().map_err(Failure::failed_text)?;
    let is_random = key.is_none() && !address.ip().is_loopback();
    let key = if is_random { Some(random_key(arguments)?) } else { key };

    let hub = downloads::hub(output);
    let own_key = key.clone();
    let (server, name) = if arguments.urls.is_empty() {
        let dtype = arguments.sampling.dtype.map(Into::into);
        let opened = if arguments.train_full { Use::Training } else { Use::Sampling };
        let policy = policy::open(&arguments.model, dtype, opened, &hub, output)?;
        let model = served(arguments, &policy)?;
        let name = model.name.clone();
        let (engine, weights) = policy::engine(&policy, arguments.sampling.threads)?;
        let mut server = server(listener, model, engine, weights, own_key, arguments, output).await?;
        if let Some(folder) = &arguments.train {
            server = server.with_extension(Arc::new(train_api(arguments, folder, &policy, &name)?));
        }
        (server, name)
    } else {
        let policy = policy::open_outside(&arguments.model, &hub, output)?;
        let model = served(arguments, &policy)?;
        let name = model.name.clone();
        let (engine, weights) =
            assembly::running_servers(&policy, &servers(arguments)).map_err(Failure::from_run)?;
        (server(listener, model, engine, weights, own_key, arguments, output).await?, name)
    };
    let stopper = server.stopper();
    signals::count_signals(move |number| {
        if number == 1 {
            output.info("stopping: requests in flight finish (press Ctrl-C again to cancel them)");
            stopper.drain();
        } else {
            output.info("cancelling the requests in flight");
            stopper.stop();
        }
    })?;
    announce(&name, &format!("http://{address}"), key.filter(|_| is_random), output)?;
    let cancelled = server.run().await;
    let end = if cancelled == 0 { String::new() } else { format!("; {cancelled} requests were cancelled") };
    output.info(&format!("stopped{end}"));
    Ok(())
}

/// A server over an engine, which gets its weights first.
async fn server<E: RolloutEngine + 'static>(
    listener: TcpListener,
    model: ServedModel,
    engine: E,
    weights: PublishedPolicy,
    key: Option<ApiKey>,
    arguments: &Serve,
    output: Output,
) -> Result<Server, Failure> {
    engine.load(&weights, OnUpdate::Finish).await.map_err(Failure::failed)?;
    let defaults = ServeSettings::default();
    let settings = ServeSettings {
        max_connections: if arguments.train.is_some() { TRAIN_CONNECTIONS } else { defaults.max_connections },
        max_requests: arguments.max_requests,
        nonce: std::process::id(),
        ..defaults
    };
    let log = move |exchange: &rloom_serve::Exchange| {
        output.info(&output.paint(FAINT, &exchange.to_string()));
    };
    Ok(Server::new(listener, model, Arc::new(engine), key, settings, log))
}

/// Settings of the servers at `--url`.
fn servers(arguments: &Serve) -> RolloutEngineSettings {
    let settings = ServerSettings {
        urls: arguments.urls.clone(),
        max_requests: arguments.max_requests.div_ceil(arguments.urls.len().max(1)),
        replace_seconds: SERVER_WAIT_SECONDS,
        ..ServerSettings::default()
    };
    match arguments.engine {
        ServerEngine::Vllm => RolloutEngineSettings::Vllm(settings),
        ServerEngine::Sglang => RolloutEngineSettings::Sglang(settings),
    }
}

/// Says where the model is served, and shows a random key to its owner.
fn announce(name: &str, url: &str, key: Option<ApiKey>, output: Output) -> Result<(), Failure> {
    if output.json {
        let mut line = json!({"url": url, "model": name});
        if let Some(key) = key {
            line["api_key"] = json!(key.reveal());
        }
        return output.json(&line);
    }
    output.info(&format!("serving {name} at {}", output.paint(CYAN, url)));
    // Also with --quiet: the server cannot be used without it.
    key.map_or(Ok(()), |key| output.data(&format!("API key: {}", key.reveal())))
}

/// The key of the arguments or the environment.
fn given_key(arguments: &Serve) -> Result<Option<ApiKey>, Failure> {
    let variable = || std::env::var(KEY_VARIABLE).ok().filter(|key| !key.is_empty());
    let given = arguments.api_key.clone().or_else(variable);
    let key = given.map(ApiKey::new).transpose().map_err(Failure::usage)?;
    match &key {
        Some(key) if arguments.train.is_some() && !key.has_prefix(TRAIN_KEY_PREFIX) => {
            Err(Failure::usage_text(format_args!(
                "with --train, the API key must begin with `{TRAIN_KEY_PREFIX}`: the SDK sends no other keys"
            )))
        }
        _ => Ok(key),
    }
}

/// A random key that all clients of the server can send.
fn random_key(arguments: &Serve) -> Result<ApiKey, Failure> {
    let key = ApiKey::random().map_err(Failure::failed)?;
    Ok(if arguments.train.is_some() { key.with_prefix(TRAIN_KEY_PREFIX) } else { key })
}

/// The training API over a policy.
fn train_api(arguments: &Serve, folder: &Path, policy: &Policy, name: &str) -> Result<TrainApi, Failure> {
    // Clients load the tokenizer by the first name: a folder of this machine or a model of the hub.
    let folder_of_model = policy.folder().filter(|_| Path::new(&arguments.model).exists());
    let source = folder_of_model
        .and_then(|folder| std::fs::canonicalize(folder).ok())
        .map_or_else(|| arguments.model.clone(), |folder| folder.to_string_lossy().into_owned());
    let mut names = vec![source, name.to_owned(), arguments.model.clone()];
    if arguments.name.is_some() {
        names.swap(0, 1);
    }
    let mut seen = HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    let base = BaseModel {
        names,
        model: policy.model().map_err(Failure::from_run)?,
        tokenizer: (*policy.tokenizer).clone(),
        generation: policy.generation.clone(),
        stop_tokens: policy.stop_tokens(),
        ctx: rloom_run::context(arguments.sampling.threads).map_err(Failure::failed)?,
    };
    let weights = if arguments.train_full { TrainedWeights::All } else { TrainedWeights::Adapters };
    let settings =
        TrainApiSettings { weights, max_models: arguments.train_models, ..TrainApiSettings::default() };
    TrainApi::new(base, folder.to_owned(), settings).map_err(Failure::failed)
}

fn served(arguments: &Serve, policy: &Policy) -> Result<ServedModel, Failure> {
    let most = arguments.max_new_tokens.unwrap_or(policy.context);
    let last_part =
        || Path::new(&arguments.model).file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(ServedModel {
        name: arguments.name.clone().or_else(last_part).unwrap_or_else(|| arguments.model.clone()),
        tokenizer: (*policy.tokenizer).clone(),
        format: arguments.calls.or_else(|| CallFormat::detect(&policy.tokenizer)),
        sampling: policy::sampling(&arguments.sampling, most, &policy.generation, &[])?,
        stop_tokens: policy.stop_tokens(),
        context: policy.context,
        seed: arguments.sampling.seed,
    })
}
