//! The conformance suite of training engines over the embedded one.

use rloom_engine::ActivationCheckpointing;
use rloom_engine::conformance::TrainSuite;

use crate::train::support::{VOCABULARY, engine};

#[test]
fn the_embedded_engine_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let create = || engine(2);
    assert_eq!(TrainSuite::new(&create, VOCABULARY, folder.path(), 0.0).run(), Ok(()));
}

#[test]
fn it_conforms_with_checkpointing_and_folders() {
    let folder = tempfile::tempdir().unwrap();
    let create = || {
        engine(1)
            .with_activation_checkpointing(ActivationCheckpointing::Block)
            .with_publications_in(folder.path().join("published"))
    };
    assert_eq!(TrainSuite::new(&create, VOCABULARY, folder.path(), 0.0).run(), Ok(()));
}
