//! Teachers of stages: their weights, and the tokens that they share with their students.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rloom_config::{Config, Stage};
use rloom_core::PolicyId;
use rloom_hub::Hub;
use rloom_remote::EndpointTeacher;
use rloom_store::checkpoint::{CheckpointName, verify};
use rloom_text::Tokenizer;

use crate::stage_setup::RunInputs;
use crate::{Policy, RunError};

/// The teacher of a stage.
#[derive(Debug)]
pub enum StageTeacher {
    /// A model in a folder, which the engine that trains computes.
    Model {
        /// The model, opened without its weights where other processes compute it.
        policy: Box<Policy>,
        /// Its folder.
        folder: PathBuf,
    },
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
    let policy = if stage.trains_outside() {
        Policy::open_outside(&folder, config.dtype)?
    } else {
        Policy::open_frozen(&folder, config.dtype)?
    };
    match difference(&policy, inputs) {
        None => Ok(Some(StageTeacher::Model { policy: Box::new(policy), folder })),
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

/// The first difference between a model and the run's model that keeps the one from reading what the other has written; `None`
/// if there is none. Ids without a token, such as those that pad a head, may be missing from either.
pub(crate) fn difference(policy: &Policy, inputs: &RunInputs) -> Option<String> {
    let token = |tokenizer: &Tokenizer, id| tokenizer.id_to_token(id);
    let ids = 0..policy.vocabulary.max(inputs.vocabulary) as u32;
    let differs = |&id: &u32| token(&policy.tokenizer, id) != token(&inputs.tokenizer, id);
    if let Some(id) = ids.into_iter().find(differs) {
        let name =
            |tokenizer| token(tokenizer, id).map_or("nothing".to_owned(), |token| format!("{token:?}"));
        let [theirs, own] = [&policy.tokenizer, &inputs.tokenizer].map(|tokenizer| name(tokenizer));
        return Some(format!("token {id} is {theirs} there and {own} in the run's model"));
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
