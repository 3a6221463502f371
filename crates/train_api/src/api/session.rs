//! Sessions, and what the server says about itself.

use std::time::Instant;

use serde_json::{Value, json};

use super::{TrainApi, random};
use crate::adapter::describe;
use crate::checkpoints::CheckpointPath;
use crate::problem::Problem;
use crate::settings::TrainedWeights;
use crate::version;
use crate::wire::{CreateSession, Heartbeat, ModelId, SdkVersion, TinkerPath};

impl TrainApi {
    /// Behaviour of the client.
    pub(super) fn client_config(&self, request: &SdkVersion) -> Result<Value, Problem> {
        version::check(&request.sdk_version)?;
        Ok(json!({
            "pjwt_auth_enabled": false,
            "parallel_fwdbwd_chunks": true,
            "proto_compress_fwdbwd": false,
            "sample_max_concurrent_requests": self.shared.settings.max_samples,
            "sample_use_retrieve_futures": false,
            "custom_loss_server_side": false,
            // Of versions before 0.38, later ones always do so.
            "create_model_via_load_weights": true,
        }))
    }

    pub(super) fn dynamic_config(request: &SdkVersion) -> Result<Value, Problem> {
        version::check(&request.sdk_version)?;
        Ok(json!({"sample_cancel_enabled": true}))
    }

    pub(super) fn capabilities(&self) -> Value {
        let base = &self.shared.base;
        let context = base.context();
        let model = |name: &String| json!({"model_name": name, "max_context_length": context, "trainable": true, "sampleable": true});
        json!({"supported_models": base.names.iter().map(model).collect::<Vec<_>>()})
    }

    pub(super) fn create_session(&self, request: &CreateSession) -> Result<Value, Problem> {
        version::check(&request.sdk_version)?;
        let id = format!("{:016x}", random().map_err(|error| Problem::failed(error.to_string()))?);
        let mut registry = self.shared.registry();
        let most = self.shared.settings.max_sessions;
        if registry.sessions() >= most {
            return Err(Problem::busy(format!("{most} sessions are open, which is the limit")));
        }
        registry.open(id.clone(), Instant::now());
        let mut answer = json!({"session_id": id, "type": "create_session"});
        if self.shared.settings.weights == TrainedWeights::All {
            let message = "this server trains all weights of a model: the settings of LoRA are ignored";
            answer["info_message"] = json!(message);
        }
        Ok(answer)
    }

    pub(super) fn heartbeat(&self, request: &Heartbeat) -> Result<Value, Problem> {
        self.shared.registry().touch(&request.session_id, Instant::now())?;
        Ok(json!({"type": "session_heartbeat"}))
    }

    pub(super) fn finish(&self, session: &str) -> Value {
        self.shared.end_session(session);
        json!({})
    }

    pub(super) fn info(&self, request: &ModelId) -> Result<Value, Problem> {
        let lora = self.shared.registry().model(&request.model_id, Instant::now())?.lora.clone();
        let base = &self.shared.base;
        let family = json!(base.model.config().family);
        Ok(merged(
            describe(lora.as_ref()),
            json!({
                "type": "get_info",
                "model_id": request.model_id,
                "model_data": {"arch": family, "model_name": base.name(), "tokenizer_id": base.name()},
                "model_name": base.name(),
            }),
        ))
    }

    pub(super) fn weights_info(&self, request: &TinkerPath) -> Result<Value, Problem> {
        let path =
            CheckpointPath::parse(&request.tinker_path).map_err(|failed| Problem::invalid(failed.message))?;
        if !self.shared.checkpoints.exists(&path) {
            return Err(Problem::not_found(format!("{} does not exist", path.text())));
        }
        let lora = self.shared.checkpoints.lora(&path).map_err(|failed| Problem::failed(failed.message))?;
        Ok(merged(describe(lora.as_ref()), json!({"base_model": self.shared.base.name()})))
    }
}

/// The entries of both objects.
fn merged(mut a: Value, mut b: Value) -> Value {
    if let (Some(a), Some(b)) = (a.as_object_mut(), b.as_object_mut()) {
        a.append(b);
    }
    a
}
