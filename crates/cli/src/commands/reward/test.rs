//! `rloom reward test`: judges reference answers and given completions.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rloom_config::Config;
use rloom_run::reward_test::{RewardReport, RewardTest as Test, RewardTestError, read_completions};

use super::view;
use crate::arguments::RewardTest;
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::downloads;
use crate::progress::numbers::percent;

pub(crate) fn run(arguments: &RewardTest, output: Output) -> Result<(), Failure> {
    if !(0.0..=1.0).contains(&arguments.min_solved) {
        return Err(Failure::usage_text("--min-solved must be from 0 to 1"));
    }
    if arguments.template.as_ref().is_some_and(|template| !template.contains("{answer}")) {
        return Err(Failure::usage_text("--template must contain {answer}"));
    }
    let config = Config::load(&arguments.files, &arguments.overrides)?;
    let completions = match &arguments.completions {
        Some(path) => read_completions(path).map_err(Failure::usage)?,
        None => Vec::new(),
    };
    let test = Test {
        stage: arguments.stage.clone(),
        rows: arguments.rows,
        template: arguments.template.clone(),
        completions,
    };
    let bar = bar(output);
    let report = test.run(&config, &downloads::hub(output), &|done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let report = report.map_err(failure)?;
    if output.json {
        output.json(&report)?;
    } else {
        output.data(view::text(&report, arguments.show, output.on_stdout()).trim_end())?;
    }
    check(&report, arguments)
}

/// Refuses a reward that does not reward the reference answers.
fn check(report: &RewardReport, arguments: &RewardTest) -> Result<(), Failure> {
    let least = arguments.min_solved;
    match &report.references {
        None if report.completions.is_none() => Err(Failure::failed_text(
            "nothing was judged: no row has a reference answer as a completion; pass --template or --completions",
        )),
        Some(references) if references.solved.is_some_and(|solved| solved < least) => {
            let solved = references.solved.unwrap_or_default();
            Err(Failure::failed_text(format!(
                "{} of the reference answers solve their tasks, fewer than {}",
                percent(solved),
                percent(least)
            )))
        }
        _ => Ok(()),
    }
}

/// Wrong names and lines are errors of usage.
fn failure(error: RewardTestError) -> Failure {
    match error {
        RewardTestError::NoReward { .. } | RewardTestError::NoTask { .. } => Failure::usage(error),
        RewardTestError::Data(error) if error.is_wrong_name() => Failure::usage(error),
        error => Failure::failed(error),
    }
}

fn bar(output: Output) -> ProgressBar {
    if !output.live {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("judge {bar:24} {pos}/{len}");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─"))
}
