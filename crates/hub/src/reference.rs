//! Names of models and data sets on a hub.

use std::fmt;
use std::str::FromStr;

/// Revision that is read if none is given.
pub(crate) const DEFAULT_REVISION: &str = "main";

/// Kind of a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepositoryKind {
    /// A model.
    Model,
    /// A data set.
    Dataset,
}

impl fmt::Display for RepositoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::Dataset => "data set",
        })
    }
}

/// A repository on a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repository {
    /// Model or data set.
    pub kind: RepositoryKind,
    /// Organisation or user.
    pub organisation: String,
    /// Name within the organisation.
    pub name: String,
}

impl Repository {
    fn parse(kind: RepositoryKind, organisation: &str, name: &str) -> Result<Self, ReferenceError> {
        let part = |what, value: &str| {
            let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            let valid = !value.starts_with('.')
                && !value.contains("..")
                && !value.is_empty()
                && value.chars().all(fine);
            if valid { Ok(value.to_owned()) } else { Err(ReferenceError::part(what, value)) }
        };
        Ok(Self { kind, organisation: part("organisation", organisation)?, name: part("name", name)? })
    }

    /// Path of its description below the hub's address.
    pub(crate) fn api_path(&self) -> String {
        let kind = match self.kind {
            RepositoryKind::Model => "models",
            RepositoryKind::Dataset => "datasets",
        };
        format!("api/{kind}/{self}")
    }

    /// Path of its files below the hub's address.
    pub(crate) fn files_path(&self) -> String {
        match self.kind {
            RepositoryKind::Model => self.to_string(),
            RepositoryKind::Dataset => format!("datasets/{self}"),
        }
    }

    /// Folder in the cache.
    pub(crate) fn folder_name(&self) -> String {
        let kind = match self.kind {
            RepositoryKind::Model => "models",
            RepositoryKind::Dataset => "datasets",
        };
        format!("{kind}--{}--{}", self.organisation, self.name)
    }
}

/// `organisation/name`.
impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.organisation, self.name)
    }
}

/// A model on a hub: `organisation/name[@revision]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelReference {
    /// The repository.
    pub repository: Repository,
    /// Branch, tag or commit; `None` is the main branch.
    pub revision: Option<String>,
}

impl ModelReference {
    /// True if the revision is a commit, so that the files cannot change.
    pub fn is_pinned(&self) -> bool {
        self.revision.as_deref().is_some_and(is_commit)
    }
}

impl FromStr for ModelReference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let (id, revision) = split_revision(text)?;
        let (organisation, name) = id.split_once('/').ok_or(ReferenceError::Form)?;
        Ok(Self { repository: Repository::parse(RepositoryKind::Model, organisation, name)?, revision })
    }
}

impl fmt::Display for ModelReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.repository)?;
        write_revision(f, self.revision.as_deref())
    }
}

/// A split of a data set on a hub: `hf:organisation/name[/subset][:split][@revision]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatasetReference {
    /// The repository.
    pub repository: Repository,
    /// Subset: a configuration of the data set, or a folder. `None` is the default one.
    pub subset: Option<String>,
    /// Split, such as `train`.
    pub split: Option<String>,
    /// Branch, tag or commit; `None` is the main branch.
    pub revision: Option<String>,
}

impl DatasetReference {
    /// Prefix that tells a data set on a hub from a local path.
    pub const PREFIX: &'static str = "hf:";

    /// True if the revision is a commit, so that the files cannot change.
    pub fn is_pinned(&self) -> bool {
        self.revision.as_deref().is_some_and(is_commit)
    }
}

impl FromStr for DatasetReference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<Self, ReferenceError> {
        let rest = text.strip_prefix(Self::PREFIX).ok_or(ReferenceError::DatasetForm)?;
        let (rest, revision) = split_revision(rest)?;
        let (rest, split) = match rest.split_once(':') {
            Some((rest, split)) => (rest, Some(split)),
            None => (rest, None),
        };
        let (organisation, rest) = rest.split_once('/').ok_or(ReferenceError::DatasetForm)?;
        let (name, subset) = match rest.split_once('/') {
            Some((name, subset)) => (name, Some(subset)),
            None => (rest, None),
        };
        let repository = Repository::parse(RepositoryKind::Dataset, organisation, name)?;
        if let Some(subset) = subset.filter(|subset| !is_relative_path(subset)) {
            return Err(ReferenceError::part("subset", subset));
        }
        if let Some(split) = split.filter(|split| split.is_empty() || split.contains([':', '/'])) {
            return Err(ReferenceError::part("split", split));
        }
        Ok(Self { repository, subset: subset.map(str::to_owned), split: split.map(str::to_owned), revision })
    }
}

impl fmt::Display for DatasetReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::PREFIX, self.repository)?;
        if let Some(subset) = &self.subset {
            write!(f, "/{subset}")?;
        }
        if let Some(split) = &self.split {
            write!(f, ":{split}")?;
        }
        write_revision(f, self.revision.as_deref())
    }
}

/// A name that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// Not the form of a model's name.
    #[error("not `organisation/name[@revision]`")]
    Form,
    /// Not the form of a data set's name.
    #[error("not `hf:organisation/name[/subset][:split][@revision]`")]
    DatasetForm,
    /// An invalid part.
    #[error("invalid {part} {value:?}")]
    Part {
        /// Part of the name.
        part: &'static str,
        /// Its value.
        value: String,
    },
}

impl ReferenceError {
    fn part(part: &'static str, value: &str) -> Self {
        Self::Part { part, value: value.to_owned() }
    }
}

fn split_revision(text: &str) -> Result<(&str, Option<String>), ReferenceError> {
    let Some((id, revision)) = text.split_once('@') else { return Ok((text, None)) };
    // It becomes part of a path in the cache.
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/');
    if !is_relative_path(revision) || revision.contains("..") || !revision.chars().all(fine) {
        return Err(ReferenceError::part("revision", revision));
    }
    Ok((id, Some(revision.to_owned())))
}

fn write_revision(f: &mut fmt::Formatter<'_>, revision: Option<&str>) -> fmt::Result {
    match revision {
        Some(revision) => write!(f, "@{revision}"),
        None => Ok(()),
    }
}

/// True for a commit rather than a branch or tag.
pub(crate) fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// True for a relative path that stays within its folder, without hidden parts. Names from a server or a user become
/// paths only if this holds.
pub(crate) fn is_relative_path(path: &str) -> bool {
    let fine = |part: &str| !part.is_empty() && !part.starts_with('.');
    path.split('/').all(fine) && !path.contains('\\') && !path.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_names_are_parsed() {
        let parsed = |text: &str| text.parse::<ModelReference>().map(|model| model.to_string());
        for good in ["org/name", "org/na.me-1_b@refs/pr/1", "org/name@v1.0"] {
            assert_eq!(parsed(good).as_deref(), Ok(good));
        }
        for bad in ["name", "a/b/c", "../x", "a/..", "/a", "a/", "a/b@", "a/b@../c", "a b/c", "./a", "a/b?c"]
        {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn dataset_names_are_parsed() {
        let text = "hf:org/name/some/folder:train@refs/convert/parquet";
        let parsed: DatasetReference = text.parse().unwrap();
        assert_eq!(parsed.subset.as_deref(), Some("some/folder"));
        assert_eq!(parsed.split.as_deref(), Some("train"));
        assert_eq!(parsed.revision.as_deref(), Some("refs/convert/parquet"));
        for good in [text, "hf:org/name", "hf:org/name:test", "hf:org/name/20231101.en@v1", "hf:o/n/s:t"] {
            assert_eq!(good.parse::<DatasetReference>().unwrap().to_string(), good);
        }
        for bad in [
            "org/name",
            "hf:name",
            "hf:/name",
            "hf://org/name",
            "hf:org/name/",
            "hf:org/name/../x",
            "hf:org/name:",
            "hf:org/name:a:b",
            "hf:org/name:a/b",
            "hf:org/name@",
            "hf:org/name@a b",
        ] {
            assert!(bad.parse::<DatasetReference>().is_err(), "{bad}");
        }
    }

    #[test]
    fn only_a_full_commit_is_pinned() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        assert!(is_commit(commit) && !is_commit(&commit[1..]) && !is_commit(&commit.to_uppercase()));
        assert!(format!("hf:o/n@{commit}").parse::<DatasetReference>().unwrap().is_pinned());
        assert!(!"hf:o/n@main".parse::<DatasetReference>().unwrap().is_pinned());
    }
}
