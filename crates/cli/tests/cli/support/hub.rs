//! Repositories in the cache of a hub, as `huggingface_hub` leaves them: links to blobs.

use std::path::Path;

use super::Sandbox;

/// The commit of every repository.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Adds a file to the repository in the folder `repository` of the cache, whose main branch becomes [`COMMIT`].
pub(crate) fn cache_file(sandbox: &Sandbox, repository: &str, path: &str, bytes: &[u8]) {
    let root = sandbox.path("cache").join(repository);
    let snapshot = root.join("snapshots").join(COMMIT);
    for folder in [&snapshot, &root.join("blobs")] {
        std::fs::create_dir_all(folder).unwrap();
    }
    std::fs::write(root.join("blobs").join(path), bytes).unwrap();
    std::os::unix::fs::symlink(Path::new("../../blobs").join(path), snapshot.join(path)).unwrap();
    set_branch(sandbox, repository, COMMIT);
}

/// Adds the files of a model folder, without the state of a trainer.
pub(crate) fn cache_model(sandbox: &Sandbox, repository: &str, folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        if file.is_file() {
            let name = file.file_name().unwrap().to_str().unwrap();
            cache_file(sandbox, repository, name, &std::fs::read(&file).unwrap());
        }
    }
}

/// Points the main branch to a commit.
pub(crate) fn set_branch(sandbox: &Sandbox, repository: &str, commit: &str) {
    let refs = sandbox.path("cache").join(repository).join("refs");
    std::fs::create_dir_all(&refs).unwrap();
    std::fs::write(refs.join("main"), commit).unwrap();
}
