//! Weights published as Hugging Face folders.

use rloom_core::{PolicyId, PolicyVersion};
use rloom_embedded::digest;
use rloom_engine::{Form, PublishedWeights, TrainEngine};
use rloom_model::Model;
use rloom_ops::Ctx;

use crate::train::support::{engine, model};

#[test]
fn a_folder_holds_the_published_weights_until_it_is_dropped() {
    let parent = tempfile::tempdir().unwrap();
    let mut engine = engine(1).with_policy_id(PolicyId(2)).with_publications_in(parent.path());
    let published = engine.publish(PolicyVersion(5), Form::Folder).unwrap();
    assert_eq!((published.policy, published.version), (PolicyId(2), PolicyVersion(5)));
    assert_eq!(published.digest, digest(&Ctx::serial(), &model()));
    let PublishedWeights::Folder(folder) = &published.weights else { unreachable!() };
    let path = folder.path().to_owned();
    assert_eq!(path, parent.path().join("policy-2-version-5"));
    assert_eq!(digest(&Ctx::serial(), &Model::load(&path).unwrap()), published.digest);
    drop(published);
    assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_folder_of_an_earlier_attempt_is_replaced() {
    let parent = tempfile::tempdir().unwrap();
    let mut engine = engine(1).with_publications_in(parent.path());
    let old = parent.path().join("policy-0-version-1.partial");
    std::fs::create_dir_all(&old).unwrap();
    std::fs::write(old.join("model.safetensors"), "half").unwrap();
    let published = engine.publish(PolicyVersion(1), Form::Folder).unwrap();
    let PublishedWeights::Folder(folder) = &published.weights else { unreachable!() };
    assert_eq!(digest(&Ctx::serial(), &Model::load(folder.path()).unwrap()), published.digest);
    assert!(!old.exists());
}
