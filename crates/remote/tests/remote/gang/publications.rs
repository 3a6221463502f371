//! Folders that gangs publish.

use std::collections::BTreeMap;
use std::path::Path;

use rloom_core::PolicyVersion;
use rloom_engine::{Form, PublishedPolicy, PublishedWeights, TrainEngine};
use rloom_model::Model;
use rloom_remote::{GangSettings, RankDtype};

use super::exactness::train;
use super::support::{settings, start};

/// Tensors of a folder by their names, and the size of its weights in bytes.
fn read(folder: &Path) -> (BTreeMap<String, Vec<f32>>, u64) {
    let model = Model::load(folder).unwrap();
    let tensors = model.named_tensors().map(|(spec, values)| (spec.name.clone(), values.to_vec())).collect();
    (tensors, folder.join("model.safetensors").metadata().unwrap().len())
}

fn folder_of(published: &PublishedPolicy) -> &Path {
    let PublishedWeights::Folder(folder) = &published.weights else { panic!("{published:?}") };
    folder.path()
}

/// The nearest number of bf16, the even one of two.
fn rounded(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

/// Ranks that compute in bf16 publish half of the bytes for sampling, and everything for training.
#[test]
#[ignore = "needs RLOOM_TEST_PYTHON"]
fn publications_have_the_format_of_the_computation() {
    for dtype in [RankDtype::F32, RankDtype::Bf16] {
        let folder = tempfile::tempdir().unwrap();
        let mut gang = start(GangSettings { dtype, ..settings(folder.path(), 2) });
        train(&mut gang, 0..1);
        let published = gang.publish(PolicyVersion(1), Form::Folder).unwrap();
        let (own, bytes) = read(folder_of(&published));
        let exact = gang.publish_exact(PolicyVersion(2), Form::Folder).unwrap();
        assert_eq!(published.digest, exact.digest);
        let (exact, exact_bytes) = read(folder_of(&exact));
        let checkpoint = folder.path().join("checkpoint");
        std::fs::create_dir_all(&checkpoint).unwrap();
        gang.save(&checkpoint).unwrap();
        assert_eq!(read(&checkpoint).0, exact);
        if dtype == RankDtype::F32 {
            assert_eq!((own, bytes), (exact, exact_bytes));
        } else {
            assert!(bytes < exact_bytes * 6 / 10, "{bytes} of {exact_bytes}");
            let round = |values: &Vec<f32>| values.iter().copied().map(rounded).collect::<Vec<f32>>();
            let expected: BTreeMap<_, _> =
                exact.iter().map(|(name, values)| (name.clone(), round(values))).collect();
            assert!(own == expected, "not the nearest numbers of bf16");
            assert!(own != exact);
        }
    }
}
