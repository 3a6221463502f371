use super::*;
use crate::faults::{Fault, Plan, install, quick_directory};

fn name(stage: u32, step: u64) -> CheckpointName {
    CheckpointName { stage, step, stage_name: format!("s{stage}") }
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
fn any_damage_is_refused_by_name_and_the_last_good_one_is_found() {
    let directory = quick_directory();
    let good = store(directory.path(), 0, 5);
    let newest = store(directory.path(), 1, 2);
    let checkpoints = Checkpoints::open(directory.path().to_owned()).unwrap();
    assert_eq!(Below::read(&newest).unwrap().files, FILES);
    for file in FILES {
        let path = newest.join(file);
        let whole = fs::read(&path).unwrap();
        let refused = |what: &str| {
            let error = verify(&newest).unwrap_err();
            let StoreError::CheckpointDamaged { path, damage } = &error else {
                panic!("{what} {file}: {error}")
            };
            assert!(*path == newest && damage.to_string().starts_with(file), "{what} {file}: {error}");
        };
        let passed_over = |what: &str| {
            let (found, refused) = checkpoints.newest_sound().unwrap();
            assert_eq!(found.unwrap().1, good, "{what} {file}");
            // A damaged name may put it behind the good one, where nobody asks for it.
            let named = refused.iter().any(|error| error.to_string().contains("s1-step-000002"));
            assert!(named || file == "trainer/name.json", "{what} {file}");
        };
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, bytes).unwrap();
            refused(&format!("bit {bit} of"));
            if bit % 97 == 0 {
                passed_over(&format!("bit {bit} of"));
            }
        }
        for length in [0, 1, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..length]).unwrap();
            refused(&format!("{length} bytes of"));
            passed_over(&format!("{length} bytes of"));
        }
        fs::remove_file(&path).unwrap();
        refused("no");
        passed_over("no");
        fs::write(&path, whole).unwrap();
    }
    assert_eq!(checkpoints.newest_sound().unwrap().0.unwrap().1, newest);
}

#[test]
fn another_format_is_no_damage() {
    let directory = quick_directory();
    store(directory.path(), 0, 5);
    let newest = store(directory.path(), 1, 2);
    let path = newest.join("MANIFEST");
    let mut manifest: Manifest = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let checkpoints = Checkpoints::open(directory.path().to_owned()).unwrap();
    for version in [1, 3] {
        manifest.format_version = version;
        manifest.checksum = (version > 1).then(|| Manifest::checksum(version, &manifest.files));
        fs::write(&path, serde_json::to_vec(&manifest).unwrap()).unwrap();
        let error = checkpoints.newest_sound().unwrap_err();
        assert!(matches!(error, StoreError::CheckpointFormat { found, .. } if found == version), "{error}");
        assert!(error.to_string().contains("model.path="), "{error}");
    }
}

/// Saves step 1 again and step 2, then prunes to the last one.
fn work(directory: &Path) -> Result<(), StoreError> {
    let checkpoints = Checkpoints::open(directory.to_owned())?;
    for step in [1, 2] {
        let (path, _) = checkpoints.write(&name(0, step), |folder| fill(folder, 0, step))?;
        checkpoints.point("latest", &path)?;
    }
    checkpoints.prune(1, 0, None)
}

/// The names of all operations of [`work`] where step 1 is there already.
fn points() -> Vec<String> {
    let directory = quick_directory();
    store(directory.path(), 0, 1);
    let installed = install(Plan { below: directory.path().to_owned(), faults: vec![] });
    work(directory.path()).unwrap();
    installed.points()
}

/// Whatever lies under a checkpoint's name is whole, and work goes on. `before` is kept until something is in its place.
fn check_usable(directory: &Path, here: &str) {
    let checkpoints = Checkpoints::open(directory.to_owned()).unwrap();
    let (list, damaged) = checkpoints.list().unwrap();
    assert!(damaged.is_empty(), "{here}: {damaged:?}");
    for (_, path) in &list {
        verify(path).unwrap();
    }
    assert!(list.iter().any(|(name, _)| name.stage == 1), "{here}: an older one stays");
    work(directory).unwrap();
    let left: Vec<String> = checkpoints.folders().unwrap();
    assert_eq!(left, ["s0-step-000002", "s1-step-000009"], "{here}");
}

#[test]
fn a_fault_at_any_operation_names_the_file_and_leaves_nothing_half_made() {
    let points = points();
    for file in FILES {
        assert!(points.contains(&format!("checkpoint/{file}/sync")), "{file}: {points:?}");
    }
    for (number, point) in points.iter().enumerate() {
        let faults = [Fault::Device, Fault::Full, Fault::Short];
        for &fault in if point.ends_with("write") { &faults[..] } else { &faults[..1] } {
            let directory = quick_directory();
            store(directory.path(), 1, 9);
            store(directory.path(), 0, 1);
            let plan = Plan { below: directory.path().to_owned(), faults: vec![(number, fault)] };
            let installed = install(plan);
            let error = work(directory.path()).unwrap_err();
            drop(installed);
            let here = format!("{fault:?} at {number}, {point}");
            let StoreError::Io { operation, path, .. } = &error else { panic!("{here}: {error}") };
            let file = path.file_name().unwrap().to_str().unwrap().trim_end_matches(".partial");
            assert!(point.ends_with(operation), "{here}: {error}");
            assert!(!point.starts_with("checkpoint/m") || point.contains(file), "{here}: {error}");
            check_usable(directory.path(), &here);
        }
    }
}

/// Tells the child process below where to work and where to die.
const CHILD: &str = "RLOOM_TEST_CHECKPOINT";

/// Not a test of its own: the process that the next one starts.
#[test]
#[ignore = "a child process of another test"]
fn child() {
    let Ok(order) = std::env::var(CHILD) else { return };
    let mut parts = order.splitn(3, ' ');
    let number: usize = parts.next().unwrap().parse().unwrap();
    let fault = match parts.next().unwrap() {
        "before" => Fault::DieBefore,
        "halfway" => Fault::DieHalfway,
        _ => Fault::DieAfter,
    };
    let directory = PathBuf::from(parts.next().unwrap());
    let _installed = install(Plan { below: directory.clone(), faults: vec![(number, fault)] });
    work(&directory).unwrap();
}

#[test]
fn killed_at_any_point_it_leaves_whole_checkpoints() {
    for (number, point) in points().iter().enumerate() {
        for when in ["before", "halfway", "after"] {
            if when == "halfway" && !point.ends_with("write") && !point.ends_with("remove") {
                continue;
            }
            let directory = quick_directory();
            store(directory.path(), 1, 9);
            store(directory.path(), 0, 1);
            let status = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "checkpoint::tests::child", "--ignored"])
                .env(CHILD, format!("{number} {when} {}", directory.path().display()))
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .status()
                .unwrap();
            let here = format!("{when} {number}, {point}");
            assert!(!status.success(), "{here}: the child died");
            check_usable(directory.path(), &here);
        }
    }
}

#[test]
fn a_write_that_fails_leaves_nothing() {
    let directory = quick_directory();
    let checkpoints = Checkpoints::open(directory.path().to_owned()).unwrap();
    let fail = |folder: &Path| {
        fs::write(folder.join("model"), [1]).unwrap();
        Err(StoreError::NotARun { path: folder.to_owned() })
    };
    assert!(checkpoints.write(&name(0, 1), fail).is_err());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn pruning_keeps_the_last_the_marked_and_the_best() {
    let directory = quick_directory();
    let best = store(directory.path(), 1, 3);
    store(directory.path(), 0, 7);
    for step in [1, 2, 10, 11, 12] {
        store(directory.path(), 1, step);
    }
    let checkpoints = Checkpoints::open(directory.path().to_owned()).unwrap();
    checkpoints.prune(2, 5, Some(&best)).unwrap();
    let kept: Vec<String> = checkpoints.list().unwrap().0.iter().map(|(n, _)| n.folder()).collect();
    assert_eq!(
        kept,
        ["s0-step-000007", "s1-step-000003", "s1-step-000010", "s1-step-000011", "s1-step-000012"]
    );
}
