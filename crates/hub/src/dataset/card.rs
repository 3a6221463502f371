//! Subsets and splits in the YAML header of a data set's README.md.

use yaml_rust2::{Yaml, YamlLoader};

use crate::CardError;

/// A subset of a data set (`config_name`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CardConfig {
    pub(super) name: String,
    /// Explicitly the default subset.
    pub(super) is_default: bool,
    /// Patterns of each split's files; `None` if the names of files and folders tell.
    pub(super) data_files: Option<Vec<(String, Vec<String>)>>,
    /// Folder that paths and patterns start from.
    pub(super) data_dir: Option<String>,
}

/// The subsets in the header; none without a header or without `configs`.
pub(super) fn configs(card: &str) -> Result<Vec<CardConfig>, CardError> {
    let Some(header) = header(card) else { return Ok(Vec::new()) };
    let documents = YamlLoader::load_from_str(&header)?;
    match documents.first().map(|document| &document["configs"]) {
        None | Some(Yaml::BadValue | Yaml::Null) => Ok(Vec::new()),
        Some(Yaml::Array(configs)) => configs.iter().map(config).collect(),
        Some(_) => Err(CardError::Configs),
    }
}

/// Text between the first line, `---`, and the next such line.
fn header(card: &str) -> Option<String> {
    let mut lines = card.trim_start_matches('\u{feff}').trim_start().lines();
    if lines.next()?.trim_end() != "---" {
        return None;
    }
    let mut header = String::new();
    for line in lines {
        if line.trim_end() == "---" {
            return Some(header);
        }
        header.push_str(line);
        header.push('\n');
    }
    None
}

fn config(yaml: &Yaml) -> Result<CardConfig, CardError> {
    let data_files = match &yaml["data_files"] {
        Yaml::BadValue | Yaml::Null => None,
        Yaml::Array(entries) if entries.iter().any(|entry| entry.as_hash().is_some()) => {
            Some(entries.iter().map(split).collect::<Result<_, _>>()?)
        }
        paths => Some(vec![("train".to_owned(), texts(paths)?)]),
    };
    let data_dir = match &yaml["data_dir"] {
        Yaml::BadValue | Yaml::Null => None,
        folder => Some(text(folder).ok_or(CardError::Configs)?),
    };
    Ok(CardConfig {
        name: text(&yaml["config_name"]).ok_or(CardError::Configs)?,
        is_default: yaml["default"].as_bool().unwrap_or(false),
        data_files,
        data_dir,
    })
}

fn split(yaml: &Yaml) -> Result<(String, Vec<String>), CardError> {
    Ok((text(&yaml["split"]).ok_or(CardError::Configs)?, texts(&yaml["path"])?))
}

/// A text or a list of texts.
fn texts(yaml: &Yaml) -> Result<Vec<String>, CardError> {
    match yaml {
        Yaml::Array(items) => items.iter().map(|item| text(item).ok_or(CardError::Configs)).collect(),
        one => Ok(vec![text(one).ok_or(CardError::Configs)?]),
    }
}

/// Names such as `2024` and `1.0` are texts, too.
fn text(yaml: &Yaml) -> Option<String> {
    match yaml {
        Yaml::String(text) | Yaml::Real(text) => Some(text.clone()),
        Yaml::Integer(number) => Some(number.to_string()),
        Yaml::Boolean(value) => Some(value.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subsets_and_splits_are_read() {
        let card = "---\r
license: mit
dataset_info: # generated
  features:
  - name: question
    dtype: string
configs:
- config_name: main
  default: true
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: [\"main/test-*\", 'main/more.jsonl']
- config_name: 2024
  data_files: year/*.jsonl
- config_name: folder
  data_dir: some/folder
---
# A data set
";
        let configs = configs(card).unwrap();
        let names: Vec<&str> = configs.iter().map(|config| config.name.as_str()).collect();
        assert_eq!(names, ["main", "2024", "folder"]);
        assert_eq!(configs.iter().map(|config| config.is_default).collect::<Vec<_>>(), [true, false, false]);
        let files = |config: &CardConfig| config.data_files.clone().unwrap();
        assert_eq!(files(&configs[0])[0], ("train".into(), vec!["main/train-*".into()]));
        assert_eq!(files(&configs[0])[1].1, ["main/test-*", "main/more.jsonl"]);
        assert_eq!(files(&configs[1]), [("train".into(), vec!["year/*.jsonl".into()])]);
        assert_eq!(
            (configs[2].data_files.as_ref(), configs[2].data_dir.as_deref()),
            (None, Some("some/folder"))
        );
    }

    #[test]
    fn a_card_without_subsets_has_none() {
        for card in [
            "",
            "# Title\n---\nconfigs: 1\n---\n",
            "---\nlicense: mit\n---\n",
            "---\nconfigs: [",
            "---\n---\n",
        ] {
            assert_eq!(configs(card).unwrap(), [], "{card:?}");
        }
    }

    #[test]
    fn an_invalid_header_is_an_error() {
        assert!(matches!(configs("---\nconfigs: [\n---\n"), Err(CardError::Yaml(_))));
        for yaml in
            ["configs: 1", "configs:\n- a", "configs:\n- config_name: a\n  data_files:\n  - split: train"]
        {
            let card = format!("---\n{yaml}\n---\n");
            assert!(matches!(configs(&card), Err(CardError::Configs)), "{yaml}");
        }
    }
}
