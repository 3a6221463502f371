use std::collections::BTreeMap;

use super::manifest::FileEntry;
use super::*;
use crate::child;
use crate::faults::{Fault, FaultPlan, fast_directory, install, install_at};

fn name(stage: u32, step: u64) -> CheckpointName {
    CheckpointName { stage, step, stage_name: format!("s{stage}"), policy: PolicyId::MAIN }
}

fn fill(folder: &Path, stage: u32, step: u64) -> Result<(), StoreError> {
    fs::create_dir_all(folder.join("trainer/critic")).unwrap();
    fs::write(folder.join("trainer/critic/model"), vec![8; 20]).unwrap();
    fs::write(folder.join("model"), vec![7; 100]).unwrap();
    disk::write_atomically("state", &folder.join("trainer/state"), &[stage as u8, step as u8])
}

fn store(directory: &Path, stage: u32, step: u64) -> PathBuf {
    let checkpoints = Checkpoints::open(directory.to_owned()).unwrap();
    checkpoints.write(&name(stage, step), |folder| fill(folder, stage, step)).unwrap().0
}

/// Every file of a checkpoint.
const FILES: [&str; 5] = ["MANIFEST", "model", "trainer/critic/model", "trainer/name.json", "trainer/state"];

#[test]
fn any_damage_is_reported_and_the_last_valid_checkpoint_found() {
    let directory = fast_directory();
    let older = store(directory.path(), 0, 5);
    let newest = store(directory.path(), 1, 2);
    let checkpoints = Checkpoints::open(directory.path().to_owned()).unwrap();
    assert_eq!(FolderContent::read(&newest).unwrap().files, FILES);
    for file in FILES {
        let path = newest.join(file);
        let content = fs::read(&path).unwrap();
        let check_refused = |what: &str| {
            let error = verify(&newest).unwrap_err();
            let StoreError::CheckpointDamaged { path, damage } = &error else {
                panic!("{what} {file}: {error}")
            };
            assert!(*path == newest && damage.to_string().starts_with(file), "{what} {file}: {error}");
        };
        let check_skipped = |what: &str| {
            let (found, refused) = checkpoints.newest_valid().unwrap();
            assert_eq!(found.unwrap().1, older, "{what} {file}");
            // With a damaged name it may be ordered before the valid one and not be looked at.
            let named = refused.iter().any(|error| error.to_string().contains("s1-step-000002"));
            assert!(named || file == "trainer/name.json", "{what} {file}");
        };
        for bit in 0..content.len() * 8 {
            let mut bytes = content.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, bytes).unwrap();
            check_refused(&format!("bit {bit} of"));
            if bit % 97 == 0 {
                check_skipped(&format!("bit {bit} of"));
            }
        }
        for length in [0, 1, content.len() / 2, content.len() - 1] {
            fs::write(&path, &content[..length]).unwrap();
            check_refused(&format!("{length} bytes of"));
            check_skipped(&format!("{length} bytes of"));
        }
        fs::remove_file(&path).unwrap();
        check_refused("no");
        check_skipped("no");
        fs::write(&path, content).unwrap();
    }
    assert_eq!(checkpoints.newest_valid().unwrap().0.unwrap().1, newest);
}

#[test]
fn other_formats_are_refused_by_their_version() {
    let directory = fast_directory();
    store(directory.path(), 0, 5);
    let newest = store(directory.path(), 1, 2);
    let path = newest.join("MANIFEST");
    let mut manifest: Manifest = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let checkpoints = Checkpoints::open(directory.path().to_owned()).unwrap();
    for version in [1, 2, 4] {
        manifest.format_version = version;
        manifest.checksum = (version > 1).then(|| Manifest::checksum(version, &manifest.files));
        fs::write(&path, serde_json::to_vec(&manifest).unwrap()).unwrap();
        let error = checkpoints.newest_valid().unwrap_err();
        assert!(
            matches!(error, StoreError::CheckpointFormat { found, supported: 3, .. } if found == version),
            "{error}"
        );
        let (text, hint) = (error.to_string(), miette::Diagnostic::help(&error).unwrap().to_string());
        assert!(text.contains(&format!("has format {version}")) && hint.contains("model.path="), "{text}");
    }
}

/// Saves step 1 again and step 2, then prunes to the last one.
fn exercise(directory: &Path) -> Result<(), StoreError> {
    let checkpoints = Checkpoints::open(directory.to_owned())?;
    for step in [1, 2] {
        let (path, _) = checkpoints.write(&name(0, step), |folder| fill(folder, 0, step))?;
        checkpoints.link("latest", &path)?;
    }
    checkpoints.prune(1, 0, None)
}

/// The operations of [`exercise`] where step 1 exists already.
fn operations() -> Vec<String> {
    let directory = fast_directory();
    store(directory.path(), 0, 1);
    let plan = install(FaultPlan { folder: directory.path().to_owned(), faults: vec![] });
    exercise(directory.path()).unwrap();
    plan.operations()
}

/// Every named checkpoint is valid, an older one is kept until its replacement exists, and writing can continue.
fn check_usable(directory: &Path, here: &str) {
    let checkpoints = Checkpoints::open(directory.to_owned()).unwrap();
    let (list, damaged) = checkpoints.list().unwrap();
    assert!(damaged.is_empty(), "{here}: {damaged:?}");
    for (_, path) in &list {
        verify(path).unwrap();
    }
    assert!(list.iter().any(|(name, _)| name.stage == 1), "{here}: an older checkpoint is kept");
    exercise(directory).unwrap();
    let left: Vec<String> = checkpoints.folders().unwrap();
    assert_eq!(left, ["s0-step-000002", "s1-step-000009"], "{here}");
}

#[test]
fn a_fault_at_any_operation_names_the_file_and_leaves_no_incomplete_checkpoint() {
    let operations = operations();
    for file in FILES {
        assert!(operations.contains(&format!("checkpoint/{file}/sync")), "{file}: {operations:?}");
    }
    for (number, operation_name) in operations.iter().enumerate() {
        let faults = [Fault::DeviceError, Fault::DiskFull, Fault::ShortWrite];
        for &fault in if operation_name.ends_with("write") { &faults[..] } else { &faults[..1] } {
            let directory = fast_directory();
            store(directory.path(), 1, 9);
            store(directory.path(), 0, 1);
            let faults = vec![(number, fault)];
            let plan = install(FaultPlan { folder: directory.path().to_owned(), faults });
            let error = exercise(directory.path()).unwrap_err();
            drop(plan);
            let here = format!("{fault:?} at {number}, {operation_name}");
            let StoreError::Io { operation, path, .. } = &error else { panic!("{here}: {error}") };
            let file = path.file_name().unwrap().to_str().unwrap().trim_end_matches(".partial");
            assert!(operation_name.ends_with(operation), "{here}: {error}");
            assert!(
                !operation_name.starts_with("checkpoint/m") || operation_name.contains(file),
                "{here}: {error}"
            );
            check_usable(directory.path(), &here);
        }
    }
}

/// The child process of the next test.
#[test]
#[ignore = "a child process of another test"]
fn aborted_child() {
    let Some(plan) = child::instructions() else { return };
    let directory = plan.folder.clone();
    let _plan = install(plan);
    exercise(&directory).unwrap();
}

#[test]
fn a_kill_at_any_operation_leaves_complete_checkpoints() {
    for (number, operation_name) in operations().iter().enumerate() {
        for when in ["before", "during", "after"] {
            if when == "during" && !operation_name.ends_with("write") && !operation_name.ends_with("remove") {
                continue;
            }
            let directory = fast_directory();
            store(directory.path(), 1, 9);
            store(directory.path(), 0, 1);
            let status = child::run("checkpoint::tests::aborted_child", number, when, directory.path());
            let here = format!("{when} {number}, {operation_name}");
            assert!(!status.success(), "{here}: the child was aborted");
            check_usable(directory.path(), &here);
        }
    }
}

#[test]
fn a_failed_write_leaves_nothing() {
    let directory = fast_directory();
    let checkpoints = Checkpoints::open(directory.path().to_owned()).unwrap();
    let fail = |folder: &Path| {
        fs::write(folder.join("model"), [1]).unwrap();
        Err(StoreError::NotARun { path: folder.to_owned() })
    };
    assert!(checkpoints.write(&name(0, 1), fail).is_err());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn pruning_keeps_the_last_the_regular_and_the_best() {
    let directory = fast_directory();
    store(directory.path(), 1, 3);
    store(directory.path(), 0, 7);
    for step in [1, 2, 10, 11, 12] {
        store(directory.path(), 1, step);
    }
    let checkpoints = Checkpoints::open(directory.path().to_owned()).unwrap();
    let best = Best { score: BestScore::Accuracy(0.5), stage: "s1".to_owned(), step: 3 };
    checkpoints.prune(2, 5, Some(&best)).unwrap();
    let kept: Vec<String> = checkpoints.list().unwrap().0.iter().map(|(n, _)| n.folder()).collect();
    assert_eq!(
        kept,
        ["s0-step-000007", "s1-step-000003", "s1-step-000010", "s1-step-000011", "s1-step-000012"]
    );
}

#[test]
fn pruning_keeps_the_best_of_any_policy() {
    let directory = fast_directory();
    let checkpoints = Checkpoints::open(directory.path().to_owned()).unwrap();
    let name = |step| CheckpointName { policy: PolicyId(1), ..name(0, step) };
    for step in [1, 2, 3] {
        checkpoints.write(&name(step), |folder| fill(folder, 0, step)).unwrap();
    }
    let best = Best { score: BestScore::Accuracy(0.5), stage: name(1).stage_name, step: 1 };
    checkpoints.prune(1, 0, Some(&best)).unwrap();
    let kept: Vec<u64> = checkpoints.list().unwrap().0.iter().map(|(n, _)| n.step).collect();
    assert_eq!(kept, [1, 3]);
}

/// A checkpoint of format 2, whose names have no policy.
#[test]
fn a_checkpoint_of_format_2_is_listed_and_refused() {
    let directory = fast_directory();
    let folder = directory.path().join("rl-step-000004");
    fs::create_dir_all(folder.join("trainer")).unwrap();
    fs::write(folder.join(NAME_FILE), br#"{"stage":1,"step":4,"stage_name":"rl"}"#).unwrap();
    let entry = FileEntry::read(&folder.join(NAME_FILE)).unwrap();
    let files = BTreeMap::from([(NAME_FILE.to_owned(), entry)]);
    let checksum = Some(Manifest::checksum(2, &files));
    let manifest = Manifest { format_version: 2, files, checksum };
    fs::write(folder.join("MANIFEST"), serde_json::to_vec(&manifest).unwrap()).unwrap();
    let checkpoints = Checkpoints::open(directory.path().to_owned()).unwrap();
    let name = CheckpointName { stage: 1, step: 4, stage_name: "rl".into(), policy: PolicyId::MAIN };
    assert_eq!(checkpoints.list().unwrap().0, [(name, folder.clone())]);
    let error = checkpoints.newest_valid().unwrap_err();
    assert!(
        matches!(&error, StoreError::CheckpointFormat { path, found: 2, .. } if *path == folder),
        "{error}"
    );
}

#[test]
fn a_name_of_a_newer_format_is_not_damage() {
    let directory = fast_directory();
    let newest = store(directory.path(), 1, 2);
    fs::write(newest.join(NAME_FILE), b"[]").unwrap();
    let files = BTreeMap::new();
    let checksum = Some(Manifest::checksum(4, &files));
    let manifest = Manifest { format_version: 4, files, checksum };
    fs::write(newest.join("MANIFEST"), serde_json::to_vec(&manifest).unwrap()).unwrap();
    let checkpoints = Checkpoints::open(directory.path().to_owned()).unwrap();
    let error = checkpoints.newest_valid().unwrap_err();
    assert!(matches!(error, StoreError::CheckpointFormat { found: 4, .. }), "{error}");
}

#[test]
fn policies_have_separate_folders_and_are_pruned_separately() {
    let directory = fast_directory();
    let checkpoints = Checkpoints::open(directory.path().to_owned()).unwrap();
    for policy in [PolicyId::MAIN, PolicyId(1)] {
        for step in 1..4 {
            let name = CheckpointName { policy, ..name(0, step) };
            checkpoints.write(&name, |folder| fill(folder, 0, step)).unwrap();
        }
    }
    checkpoints.prune(1, 0, None).unwrap();
    let kept: Vec<String> = checkpoints.list().unwrap().0.iter().map(|(n, _)| n.folder()).collect();
    assert_eq!(kept, ["s0-step-000003", "s0-policy-1-step-000003"]);
}

/// A model in a cache, whose files are links.
#[cfg(unix)]
#[test]
fn kept_files_outlive_the_links_that_they_were_reached_by() {
    use std::os::unix::fs::MetadataExt;
    let directory = fast_directory();
    let (blob, linked) = (directory.path().join("blob"), directory.path().join("linked"));
    fs::write(&blob, [7; 100]).unwrap();
    std::os::unix::fs::symlink("blob", &linked).unwrap();
    let keep = |name: &str| {
        write_folder("initial", directory.path(), name, |folder| {
            disk::link_or_copy("initial", &linked, &folder.join("weights"))
        })
    };
    let inode = |path: &Path| fs::symlink_metadata(path).unwrap().ino();
    let (kept, bytes) = keep("kept").unwrap();
    assert_eq!((bytes, inode(&kept.join("weights"))), (100, inode(&blob)));
    let folder = directory.path().to_owned();
    let plan = install_at(folder.clone(), "initial/link", 0, Fault::DeviceError);
    let (copied, _) = keep("copied").unwrap();
    drop(plan);
    assert_ne!(inode(&copied.join("weights")), inode(&blob), "a file system without links");
    // A copy that does not fit is removed.
    let plan = install(FaultPlan { folder, faults: vec![(1, Fault::DeviceError), (2, Fault::DiskFull)] });
    let error = keep("full").unwrap_err();
    drop(plan);
    assert!(error.to_string().starts_with("could not copy "), "{error}");
    let left = |name: &str| directory.path().join(name).exists();
    assert!(!left("full") && !left(".partial-full"));
    for path in [&linked, &blob] {
        fs::remove_file(path).unwrap();
    }
    for folder in [&kept, &copied] {
        verify(folder).unwrap();
    }
    // One byte differs.
    assert_eq!(first_difference(&kept, &copied), None);
    fs::write(copied.join("weights"), [&[8], &[7; 99][..]].concat()).unwrap();
    assert_eq!(first_difference(&kept, &copied).as_deref(), Some("weights"));
}

#[test]
fn a_folder_is_replaced_after_an_interrupted_removal() {
    let directory = fast_directory();
    let write = |content: u8| {
        let fill = |folder: &Path| {
            fs::write(folder.join("file"), [content]).map_err(|e| StoreError::io("write", folder, e))
        };
        write_folder("initial", directory.path(), "kept", fill).unwrap().0
    };
    write(1);
    let left = directory.path().join(".partial-removed-kept");
    fs::create_dir(&left).unwrap();
    fs::write(left.join("file"), [0]).unwrap();
    let kept = write(2);
    verify(&kept).unwrap();
    assert_eq!(fs::read(kept.join("file")).unwrap(), [2]);
    assert!(!left.exists());
}
