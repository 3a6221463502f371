//! Choice of subset, split and files.

use std::collections::BTreeMap;

use super::DefaultSplit;
use super::card::CardConfig;
use super::patterns::{matching, splits};
use crate::listing::{ListedFile, Listing};
use crate::{DatasetReference, HubError};

/// File name extensions of data that a repository may contain, whether they are supported or not.
const DATA_EXTENSIONS: [&str; 11] =
    ["parquet", "jsonl", "ndjson", "json", "csv", "tsv", "arrow", "txt", "xml", "tar", "zip"];

/// Extensions of compressed files; the format is told by the extension before.
const COMPRESSIONS: [&str; 6] = ["gz", "zst", "bz2", "xz", "lz4", "zip"];

/// The subset of a data set without named ones.
const DEFAULT_SUBSET: &str = "default";

/// Result of a choice.
pub(super) enum Selection<'a> {
    /// The split's files in order.
    Files(Vec<&'a ListedFile>),
    /// The formats of the data files, none of which is supported.
    Unsupported(Vec<String>),
}

type Splits<'a> = Vec<(String, Vec<&'a str>)>;

/// Chooses the files of a data set's split.
pub(super) fn select<'a>(
    listing: &'a Listing,
    configs: &[CardConfig],
    dataset: &DatasetReference,
    default: DefaultSplit,
    formats: &[&str],
) -> Result<Selection<'a>, HubError> {
    let all = listing.files.iter().map(|file| file.path.as_str());
    let paths: Vec<&str> = all.filter(|path| format_of(path).is_some()).collect();
    if paths.is_empty() {
        return Ok(Selection::Unsupported(Vec::new()));
    }
    let (subset, mut splits) = if !configs.is_empty() {
        from_card(&paths, configs, dataset)?
    } else if let Some(converted) = converted(&paths) {
        from_converted(converted, dataset)?
    } else {
        from_names(&paths, dataset)?
    };
    splits.retain(|(_, files)| !files.is_empty());
    if splits.is_empty() {
        return Ok(Selection::Unsupported(formats_of(&paths)));
    }
    let names: Vec<&str> = splits.iter().map(|(name, _)| name.as_str()).collect();
    let requested = dataset.split.as_deref();
    let chosen = match requested {
        Some(requested) => names.iter().find(|name| **name == requested).copied(),
        None => default.choose(&names),
    };
    let Some(chosen) = chosen else {
        let subset = subset.map_or(String::new(), |subset| format!("/{subset}"));
        return Err(HubError::Split {
            dataset: format!("{}{subset}", dataset.repository),
            requested: requested.map(str::to_owned),
            available: names.into_iter().map(str::to_owned).collect(),
        });
    };
    let files = splits.iter().find(|(name, _)| name == chosen).map(|(_, files)| files.as_slice());
    let files = of_one_format(files.unwrap_or_default());
    if !files.iter().all(|path| format_of(path).is_some_and(|format| formats.contains(&format.as_str()))) {
        return Ok(Selection::Unsupported(formats_of(&files)));
    }
    Ok(Selection::Files(files.iter().filter_map(|path| listing.get(path)).collect()))
}

/// Chooses a subset by name, or the default one.
fn choose_subset<'n>(
    dataset: &DatasetReference,
    available: &[&'n str],
    default: Option<&'n str>,
) -> Result<&'n str, HubError> {
    let named = |wanted: &str| available.iter().find(|name| **name == wanted).copied();
    let chosen = match (dataset.subset.as_deref(), available) {
        (Some(requested), _) => named(requested),
        (None, [only]) => Some(*only),
        (None, _) => default.or_else(|| named(DEFAULT_SUBSET)),
    };
    chosen.ok_or_else(|| HubError::Subset {
        dataset: dataset.repository.to_string(),
        requested: dataset.subset.clone(),
        available: available.iter().map(|name| (*name).to_owned()).collect(),
    })
}

fn from_card<'a>(
    paths: &[&'a str],
    configs: &[CardConfig],
    dataset: &DatasetReference,
) -> Result<(Option<String>, Splits<'a>), HubError> {
    let names: Vec<&str> = configs.iter().map(|config| config.name.as_str()).collect();
    let default = configs.iter().find(|config| config.is_default).map(|config| config.name.as_str());
    let chosen = choose_subset(dataset, &names, default)?;
    let config = configs.iter().find(|config| config.name == chosen);
    let folder = config.and_then(|config| config.data_dir.as_deref()).unwrap_or_default();
    let splits = match config.and_then(|config| config.data_files.as_ref()) {
        None => within(paths, folder, splits),
        Some(data_files) => within(paths, folder, |paths| {
            data_files.iter().map(|(split, patterns)| (split.clone(), matching(patterns, paths))).collect()
        }),
    };
    let subset = (names.len() > 1 || dataset.subset.is_some()).then(|| chosen.to_owned());
    Ok((subset, splits))
}

/// Without `configs`, a subset is a folder.
fn from_names<'a>(
    paths: &[&'a str],
    dataset: &DatasetReference,
) -> Result<(Option<String>, Splits<'a>), HubError> {
    let Some(subset) = dataset.subset.as_deref() else { return Ok((None, splits(paths))) };
    let found = within(paths, subset, splits);
    if !found.is_empty() {
        return Ok((Some(subset.to_owned()), found));
    }
    if subset == DEFAULT_SUBSET {
        return Ok((None, splits(paths)));
    }
    let mut folders: Vec<&str> = paths.iter().filter_map(|path| Some(path.split_once('/')?.0)).collect();
    folders.dedup();
    folders.push(DEFAULT_SUBSET);
    // It has no folder of that name, so this is the error.
    choose_subset(dataset, &folders, None).map(|subset| (Some(subset.to_owned()), Vec::new()))
}

/// Applies `find` to the files of a folder, with paths relative to it.
fn within<'a>(paths: &[&'a str], folder: &str, find: impl Fn(&[&'a str]) -> Splits<'a>) -> Splits<'a> {
    let folder = folder.trim_start_matches("./").trim_matches('/');
    if folder.is_empty() || folder == "." {
        return find(paths);
    }
    let below = |path: &&'a str| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    let inside: Vec<&'a str> = paths.iter().filter(|path| below(path)).copied().collect();
    let relative: Vec<&'a str> = inside.iter().map(|path| &path[folder.len() + 1..]).collect();
    let full = |name: &'a str| relative.iter().position(|path| *path == name).map(|at| inside[at]);
    let found = find(&relative);
    found.into_iter().map(|(split, files)| (split, files.into_iter().filter_map(full).collect())).collect()
}

/// Subsets, splits and files of the branch of converted files: `<subset>/<split>/<number>.parquet`. `None` for another
/// layout.
fn converted<'a>(paths: &[&'a str]) -> Option<BTreeMap<&'a str, Splits<'a>>> {
    let mut subsets: BTreeMap<&str, Splits<'_>> = BTreeMap::new();
    for &path in paths {
        let mut parts = path.split('/');
        let (subset, split, file) = (parts.next()?, parts.next()?, parts.next()?);
        let number = file.strip_suffix(".parquet")?;
        if parts.next().is_some() || number.len() != 4 || !number.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let splits = subsets.entry(subset).or_default();
        match splits.last_mut() {
            Some((name, files)) if name == split => files.push(path),
            _ => splits.push((split.to_owned(), vec![path])),
        }
    }
    Some(subsets)
}

fn from_converted<'a>(
    mut subsets: BTreeMap<&'a str, Splits<'a>>,
    dataset: &DatasetReference,
) -> Result<(Option<String>, Splits<'a>), HubError> {
    let names: Vec<&str> = subsets.keys().copied().collect();
    let chosen = choose_subset(dataset, &names, None)?;
    let subset = (names.len() > 1 || dataset.subset.is_some()).then(|| chosen.to_owned());
    Ok((subset, subsets.remove(chosen).unwrap_or_default()))
}

/// Files of the most common format. In a draw the first of [`DATA_EXTENSIONS`].
fn of_one_format<'a>(files: &[&'a str]) -> Vec<&'a str> {
    let count = |family: &str| files.iter().filter(|path| family_of(path) == Some(family)).count();
    let families = DATA_EXTENSIONS.iter().rev().map(|extension| family(extension));
    let Some(common) = families.max_by_key(|family| count(family)) else { return Vec::new() };
    files.iter().filter(|path| family_of(path) == Some(common)).copied().collect()
}

fn family(extension: &'static str) -> &'static str {
    if matches!(extension, "jsonl" | "ndjson") { "json" } else { extension }
}

fn family_of(path: &str) -> Option<&'static str> {
    let format = format_of(path)?;
    let extension = format.split('.').next()?;
    DATA_EXTENSIONS.iter().find(|known| **known == extension).map(|known| family(known))
}

/// Format of a data file: its extension in lower case, with that of the compression (`jsonl.gz`).
fn format_of(path: &str) -> Option<String> {
    let name = path.rsplit('/').next()?.to_ascii_lowercase();
    // Repositories describe themselves in these.
    if matches!(
        name.as_str(),
        "config.json" | "dataset_info.json" | "dataset_infos.json" | "dataset_dict.json"
    ) {
        return None;
    }
    let mut extensions = name.split('.').skip(1).collect::<Vec<_>>().into_iter().rev();
    let last = extensions.next()?;
    if COMPRESSIONS.contains(&last)
        && let Some(inner) = extensions.next().filter(|inner| DATA_EXTENSIONS.contains(inner))
    {
        return Some(format!("{inner}.{last}"));
    }
    DATA_EXTENSIONS.contains(&last).then(|| last.to_owned())
}

fn formats_of(paths: &[&str]) -> Vec<String> {
    let mut formats: Vec<String> = paths.iter().filter_map(|path| format_of(path)).collect();
    formats.sort();
    formats.dedup();
    formats
}

/// First numbered file (`…-00001-of-00003…`) that is missing between those that exist.
pub(super) fn missing_shard(files: &[ListedFile]) -> Option<String> {
    // Old shards have a checksum after the numbers.
    let has = |start: &str| files.iter().any(|file| file.path.starts_with(start));
    files.iter().find_map(|file| {
        let at = file.path.rfind("-of-")?;
        let total: usize = file.path.get(at + 4..at + 9)?.parse().ok()?;
        let start = at.checked_sub(5)?;
        file.path.get(start..at)?.parse::<usize>().ok()?;
        let shard = |n: usize| format!("{}{n:05}{}", &file.path[..start], &file.path[at..at + 9]);
        (0..total).map(shard).find(|start| !has(start))
    })
}

#[cfg(test)]
mod tests;
