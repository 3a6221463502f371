//! `run.resume = "auto"`: a command that is started again continues its run.

use std::path::Path;

use rloom_config::{Config, ModelSource, Resume};
use rloom_hub::ModelReference;
use rloom_model::NumericPath;

use crate::RunError;
use crate::absolute_paths::with_absolute_paths;

/// The configuration to resume with, if `config` asks to continue a run that exists. Commits of models and data sets are
/// those of the run: branches and tags may have moved since.
pub(crate) fn continued(config: &Config) -> Result<Option<Config>, RunError> {
    let recorded = config.run_directory().join("config.toml");
    if config.run.resume != Resume::Auto || !recorded.is_file() {
        return Ok(None);
    }
    let run = Config::load(&[recorded], &[] as &[&str])?;
    let mut wanted = config.clone();
    // The same folder, possibly relative to another directory.
    wanted.run.directory.clone_from(&run.run.directory);
    if let (ModelSource::Path(wanted), ModelSource::Path(run)) = (&mut wanted.model, &run.model)
        && is_same_model(wanted, run)
    {
        wanted.clone_from(run);
    }
    if wanted.numeric_path == NumericPath::Auto && wanted.dtype == run.dtype {
        wanted.numeric_path = run.numeric_path;
    }
    for stage in &mut wanted.stages {
        if let Some(own) = run.stages.iter().find(|own| own.name == stage.name) {
            stage.data.pin_as(&own.data);
        }
    }
    if let (Some(eval), Some(own)) = (&mut wanted.eval, &run.eval) {
        eval.data.pin_as(&own.data);
        for set in &mut eval.sets {
            if let Some(own) = own.sets.iter().find(|own| own.name == set.name) {
                set.data.pin_as(&own.data);
            }
        }
    }
    with_absolute_paths(wanted).map(Some)
}

/// True if `run` is a commit of the model `wanted`, or its folder, which may be gone.
fn is_same_model(wanted: &str, run: &str) -> bool {
    if std::path::absolute(wanted).is_ok_and(|wanted| wanted == Path::new(run)) {
        return true;
    }
    let (Ok(wanted), Ok(run)) = (wanted.parse::<ModelReference>(), run.parse::<ModelReference>()) else {
        return false;
    };
    wanted.repository == run.repository && !wanted.is_pinned() && run.is_pinned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_is_the_commit_of_the_run() {
        let commit = format!("org/model@{}", "0a".repeat(20));
        for (wanted, is_same) in [
            ("org/model", true),
            ("org/model@main", true),
            ("org/other", false),
            ("model", false),
            (&format!("org/model@{}", "1b".repeat(20)), false),
        ] {
            assert_eq!(is_same_model(wanted, &commit), is_same, "{wanted}");
        }
        assert!(!is_same_model("org/model", "org/model@main"));
    }

    #[test]
    fn a_relative_path_is_the_folder_of_the_run() {
        let folder = std::path::absolute("models/gone").unwrap().display().to_string();
        assert!(is_same_model("models/gone", &folder) && is_same_model("./models/gone", &folder));
        assert!(!is_same_model("models/other", &folder));
    }
}
