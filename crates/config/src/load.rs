//! Loads a [`Config`] from files and overrides.

use std::path::{Path, PathBuf};

use crate::check::check;
use crate::compose::{CHOICES, compose};
use crate::layered::load::Layers;
use crate::problem::{Code, ConfigErrors, Problem};
use crate::secret;
use crate::settings::Config;

impl Config {
    /// Reads `files` in order of increasing precedence, then `overrides` (`path.to.key=value`). Paths in the
    /// configuration are relative to the current directory.
    ///
    /// # Errors
    ///
    /// All errors, with file, line and column.
    pub fn load<P: AsRef<Path>, S: AsRef<str>>(files: &[P], overrides: &[S]) -> Result<Self, ConfigErrors> {
        let mut layers = Layers::new(CHOICES);
        for file in files {
            layers.add_file(file.as_ref());
        }
        finish(layers, files.first().map(AsRef::as_ref), overrides)
    }

    /// Reads a configuration from text; `name` is its file name in messages.
    pub fn from_text<S: AsRef<str>>(name: &str, text: &str, overrides: &[S]) -> Result<Self, ConfigErrors> {
        let mut layers = Layers::new(CHOICES);
        layers.add_text(PathBuf::from(name), text.to_owned());
        finish(layers, Some(Path::new(name)), overrides)
    }
}

fn finish<S: AsRef<str>>(
    mut layers: Layers,
    first: Option<&Path>,
    overrides: &[S],
) -> Result<Config, ConfigErrors> {
    let Some(first) = first else {
        let problem = Problem::new(Code::Unreadable, "no configuration file was given");
        return Err(ConfigErrors::new(layers.sources, vec![problem]));
    };
    for text in overrides {
        layers.add_override(text.as_ref());
    }
    let Layers { sources, root, mut problems, .. } = layers;
    secret::find(&root, &sources, &mut problems);
    // Reading an incomplete tree would only add errors that follow from these.
    if !problems.is_empty() {
        return Err(ConfigErrors::new(sources, problems));
    }
    let draft = compose(&root, &sources, &mut problems);
    let name = first.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let config = match draft {
        Some(draft) if problems.is_empty() => check(&draft, &name, &mut problems),
        _ => None,
    };
    config.ok_or_else(|| ConfigErrors::new(sources, problems))
}
