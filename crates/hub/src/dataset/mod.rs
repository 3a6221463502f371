//! Data files of data sets, found as Python's `datasets` finds them.
//!
//! In this order: the `configs` in the header of README.md; the branch of automatically converted files, when it is read
//! itself; the names of files and folders. If the files are in no supported format, those of the branch of automatically
//! converted Parquet files are used.

mod card;
mod glob;
mod layout;
mod patterns;

use std::fs;
use std::path::PathBuf;

use card::CardConfig;
use layout::{Selection, select};

use crate::hub::{Hub, Snapshot};
use crate::listing::ListedFile;
use crate::reference::DEFAULT_REVISION;
use crate::{DatasetReference, HubError};

/// Branch with automatically converted Parquet files.
const CONVERTED: &str = "refs/convert/parquet";

/// File with the header that describes subsets and splits.
const CARD: &str = "README.md";

/// Split that is read if none is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultSplit {
    /// `train`, or the only split.
    Train,
    /// None: the split must be given.
    Required,
}

impl DefaultSplit {
    fn choose<'a>(self, available: &[&'a str]) -> Option<&'a str> {
        match (self, available) {
            (Self::Required, _) => None,
            (Self::Train, [only]) => Some(only),
            (Self::Train, many) => many.iter().find(|name| **name == "train").copied(),
        }
    }
}

/// Files of a split.
struct Plan {
    snapshot: Snapshot,
    files: Vec<ListedFile>,
}

impl Hub {
    /// Data files of a split in the order of their names, downloaded as far as they are not in the cache. `formats` are the
    /// file name extensions that the caller reads.
    pub fn dataset_files(
        &self,
        dataset: &DatasetReference,
        default: DefaultSplit,
        formats: &[&str],
    ) -> Result<Vec<PathBuf>, HubError> {
        let _call = self.start();
        let plan = self.plan(dataset, default, formats)?;
        plan.files.iter().map(|file| self.download(&plan.snapshot, file)).collect()
    }

    /// The data set with the commit as its revision. Downloads no data, but checks that the split exists.
    pub fn pin_dataset(
        &self,
        dataset: &DatasetReference,
        default: DefaultSplit,
        formats: &[&str],
    ) -> Result<DatasetReference, HubError> {
        if dataset.is_pinned() {
            return Ok(dataset.clone());
        }
        let _call = self.start();
        let commit = self.plan(dataset, default, formats)?.snapshot.listing.commit;
        Ok(DatasetReference { revision: Some(commit), ..dataset.clone() })
    }

    fn plan(
        &self,
        dataset: &DatasetReference,
        default: DefaultSplit,
        formats: &[&str],
    ) -> Result<Plan, HubError> {
        let found = match self.plan_at(dataset, dataset.revision.as_deref(), default, formats)? {
            Ok(plan) => return Ok(plan),
            Err(found) => found,
        };
        // The converted files are those of the main branch.
        let converted = dataset.revision.as_deref().is_none_or(|revision| revision == DEFAULT_REVISION);
        if converted {
            match self.plan_at(dataset, Some(CONVERTED), default, formats) {
                Ok(Ok(plan)) => return Ok(plan),
                Ok(Err(_)) | Err(HubError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Err(HubError::NoData { dataset: dataset.repository.to_string(), found, converted })
    }

    /// Files of a split at a revision, or the formats of the data files if they are not supported.
    fn plan_at(
        &self,
        dataset: &DatasetReference,
        revision: Option<&str>,
        default: DefaultSplit,
        formats: &[&str],
    ) -> Result<Result<Plan, Vec<String>>, HubError> {
        let snapshot = self.snapshot(&dataset.repository, revision)?;
        let configs = self.card_configs(&snapshot)?;
        let files: Vec<ListedFile> = match select(&snapshot.listing, &configs, dataset, default, formats)? {
            Selection::Files(files) => files.into_iter().cloned().collect(),
            Selection::Unsupported(found) => return Ok(Err(found)),
        };
        if snapshot.is_partial
            && let Some(file) = layout::missing_shard(&files)
        {
            return Err(HubError::Incomplete { id: dataset.to_string(), file });
        }
        Ok(Ok(Plan { snapshot, files }))
    }

    /// Subsets that README.md describes.
    fn card_configs(&self, snapshot: &Snapshot) -> Result<Vec<CardConfig>, HubError> {
        let Some(card) = snapshot.listing.get(CARD) else { return Ok(Vec::new()) };
        let path = self.download(snapshot, card)?;
        let text = fs::read(&path).map_err(|source| HubError::Io { path, source })?;
        let dataset = snapshot.repository.to_string();
        card::configs(&String::from_utf8_lossy(&text)).map_err(|source| HubError::Card { dataset, source })
    }
}
