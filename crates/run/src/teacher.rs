//! Teachers of stages: their weights, and the tokens that they share with their students.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rloom_config::{Config, Stage};
use rloom_core::PolicyId;
use rloom_hub::Hub;
use rloom_remote::EndpointTeacher;
use rloom_store::checkpoint::{CheckpointName, verify};

use crate::stage_setup::RunInputs;
use crate::{Policy, RunError};

/// The teacher of a stage.
#[derive(Debug)]
pub enum StageTeacher {
    /// A model that this process computes.
    Model(Policy),
    /// A server.
    Endpoint(Box<EndpointTeacher>),
}

/// The teacher of a stage of the run in `run`; `None` if the stage has none.
pub(crate) fn open(
    config: &Config,
    stage: &Stage,
    run: &Path,
    inputs: &RunInputs,
) -> Result<Option<StageTeacher>, RunError> {
    let Some(teacher) = &stage.teacher else { return Ok(None) };
    if let Some(url) = &teacher.url {
        let (model, tokenizer) = (teacher.model.clone(), Arc::clone(&inputs.tokenizer));
        let endpoint = EndpointTeacher::new(url, model, tokenizer, teacher.timeout())?;
        return Ok(Some(StageTeacher::Endpoint(Box::new(endpoint))));
    }
    let (source, folder) = match (&teacher.path, &teacher.stage) {
        (Some(path), _) => (path.clone(), inputs.hub.model(path)?),
        (None, name) => {
            let name = name.as_deref().unwrap_or_default();
            (format!("of stage `{name}`"), end_of(config, name, run, inputs.policy)?)
        }
    };
    let policy = Policy::open_frozen(&folder, config.dtype)?;
    match difference(&policy, inputs) {
        None => Ok(Some(StageTeacher::Model(policy))),
        Some(what) => Err(RunError::OtherTeacher { stage: stage.name.clone(), model: source, what }),
    }
}

/// The checkpoint at the end of a stage.
fn end_of(config: &Config, name: &str, run: &Path, policy: PolicyId) -> Result<PathBuf, RunError> {
    let stages = (0..).zip(&config.stages);
    let found = stages.filter(|(_, stage)| stage.name == name).map(|(index, source)| CheckpointName {
        policy,
        stage: index,
        step: source.steps,
        stage_name: source.name.clone(),
    });
    let folder = found.map(|name| name.folder()).next().unwrap_or_default();
    let path = run.join("checkpoints").join(folder);
    verify(&path)?;
    Ok(path)
}

/// The first difference between the tokens of a model and those of the run's model, which keeps the one from standing in for
/// the other; `None` if there is none.
pub(crate) fn difference(policy: &Policy, inputs: &RunInputs) -> Option<String> {
    let differs = |id: &u32| policy.tokenizer.id_to_token(*id) != inputs.tokenizer.id_to_token(*id);
    if policy.vocabulary != inputs.vocabulary {
        return Some(format!(
            "it has {} token ids, the run's model {}",
            policy.vocabulary, inputs.vocabulary
        ));
    }
    if let Some(id) = (0..inputs.vocabulary as u32).find(differs) {
        let token = |tokenizer: &rloom_text::Tokenizer| {
            tokenizer.id_to_token(id).map_or("nothing".to_owned(), |token| format!("{token:?}"))
        };
        return Some(format!(
            "token {id} is {} there and {} in the run's model",
            token(&policy.tokenizer),
            token(&inputs.tokenizer)
        ));
    }
    (policy.context < inputs.context).then(|| {
        format!("its context is {} tokens, that of the run's model {}", policy.context, inputs.context)
    })
}

/// Sources of the teachers that are folders or on a hub.
pub(crate) fn sources(config: &mut Config) -> impl Iterator<Item = &mut String> {
    let teachers = config.stages.iter_mut().filter_map(|stage| stage.teacher.as_mut());
    teachers.filter_map(|teacher| teacher.path.as_mut())
}

/// Downloads the teachers of a configuration.
pub(crate) fn download(config: &Config, hub: &Hub) -> Result<(), RunError> {
    let teachers = config.stages.iter().filter_map(|stage| stage.teacher.as_ref());
    for path in teachers.filter_map(|teacher| teacher.path.as_ref()) {
        hub.model(path)?;
    }
    Ok(())
}
