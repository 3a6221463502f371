//! List of a repository's files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::ListingError;
use crate::reference::{is_commit, is_relative_path};

/// Files of one commit.
#[derive(Debug)]
pub(crate) struct Listing {
    /// The commit.
    pub(crate) commit: String,
    /// Files, sorted by path.
    pub(crate) files: Vec<ListedFile>,
}

/// A file of a commit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ListedFile {
    /// Path within the repository.
    pub(crate) path: String,
    /// Size in bytes, if known.
    pub(crate) size: Option<u64>,
    /// Git's identifier of the file, if known.
    pub(crate) blob_id: Option<String>,
    /// SHA-256 of a large file, if known.
    pub(crate) sha256: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<LargeFile>,
}

#[derive(Deserialize)]
struct LargeFile {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Listing {
    fn new(commit: String, mut files: Vec<ListedFile>) -> Self {
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self { commit, files }
    }

    /// Reads the hub's description of a revision.
    pub(crate) fn from_answer(answer: &[u8]) -> Result<Self, ListingError> {
        let answer: Answer = serde_json::from_slice(answer)?;
        if !is_commit(&answer.sha) {
            return Err(ListingError::Commit { commit: answer.sha });
        }
        // A server must not choose where a file is written: other paths do not exist for us. Hidden files are not needed.
        let usable = answer.siblings.into_iter().filter(|file| is_relative_path(&file.rfilename));
        let files = usable.map(|file| {
            let (sha256, large) = file.lfs.map_or((None, None), |lfs| (lfs.sha256, lfs.size));
            ListedFile { path: file.rfilename, size: large.or(file.size), blob_id: file.blob_id, sha256 }
        });
        Ok(Self::new(answer.sha, files.collect()))
    }

    /// Lists files by name only.
    pub(crate) fn from_paths(commit: &str, paths: Vec<String>) -> Self {
        let files = paths.into_iter().map(|path| ListedFile { path, ..ListedFile::default() });
        Self::new(commit.to_owned(), files.collect())
    }

    pub(crate) fn get(&self, path: &str) -> Option<&ListedFile> {
        self.files.iter().find(|file| file.path == path)
    }
}

/// Form in which `huggingface_hub` keeps the list of a commit's files (`trees/<commit>.json`).
#[derive(Serialize, Deserialize)]
struct Tree {
    format_version: u32,
    files: BTreeMap<String, TreeFile>,
}

#[derive(Serialize, Deserialize)]
struct TreeFile {
    size: Option<u64>,
    blob_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lfs_sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lfs_size: Option<u64>,
}

const TREE_VERSION: u32 = 1;

impl Listing {
    pub(crate) fn to_tree(&self) -> Result<Vec<u8>, serde_json::Error> {
        let files = self.files.iter().map(|file| {
            let lfs_size = file.sha256.as_ref().and(file.size);
            let (blob_id, lfs_sha256) = (file.blob_id.clone(), file.sha256.clone());
            (file.path.clone(), TreeFile { size: file.size, blob_id, lfs_sha256, lfs_size })
        });
        serde_json::to_vec(&Tree { format_version: TREE_VERSION, files: files.collect() })
    }

    /// `None` for another version of the format.
    pub(crate) fn from_tree(commit: &str, tree: &[u8]) -> Option<Self> {
        let tree: Tree =
            serde_json::from_slice(tree).ok().filter(|t: &Tree| t.format_version == TREE_VERSION)?;
        let usable = tree.files.into_iter().filter(|(path, _)| is_relative_path(path));
        let files = usable.map(|(path, file)| {
            let size = file.lfs_size.or(file.size);
            ListedFile { path, size, blob_id: file.blob_id, sha256: file.lfs_sha256 }
        });
        Some(Self::new(commit.to_owned(), files.collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn paths_outside_of_the_repository_are_dropped() {
        let siblings = ["../x", "/x", "a/../x", "a\\x", ".gitattributes", "a/b.parquet", "README.md"]
            .map(|path| serde_json::json!({ "rfilename": path }));
        let answer = serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string();
        let listing = Listing::from_answer(answer.as_bytes()).unwrap();
        let paths: Vec<&str> = listing.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["README.md", "a/b.parquet"]);
        let wrong = answer.replace(COMMIT, "../../x");
        assert!(matches!(Listing::from_answer(wrong.as_bytes()), Err(ListingError::Commit { .. })));
    }

    #[test]
    fn a_recorded_listing_is_read_back() {
        let file = |path: &str, sha256: Option<&str>| ListedFile {
            path: path.into(),
            size: Some(3),
            blob_id: Some("b".into()),
            sha256: sha256.map(Into::into),
        };
        let listing = Listing::new(COMMIT.into(), vec![file("b", Some("s")), file("a", None)]);
        let read = Listing::from_tree(COMMIT, &listing.to_tree().unwrap()).unwrap();
        assert_eq!(read.files, listing.files);
        assert!(Listing::from_tree(COMMIT, br#"{"format_version": 2, "files": {}}"#).is_none());
    }
}
