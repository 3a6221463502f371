//! `rloom reward calibrate`: compares a judge with labels.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rloom_config::Config;
use rloom_reward::judge::{Agreement, Calibration};
use rloom_reward::{ComponentSettings, Kind, ModelJudge, RewardSettings};
use rloom_run::assembly::EmbeddedJudges;

use crate::arguments::Calibrate;
use crate::failure::Failure;
use crate::output::{BOLD, CYAN, Output};
use crate::progress::downloads;
use crate::progress::numbers::percent;

pub(crate) fn run(arguments: &Calibrate, output: Output) -> Result<(), Failure> {
    let config = Config::load(&arguments.files, &arguments.overrides)?;
    let (component, judge, reward) = judge_of(&config, arguments.component.as_deref())?;
    let rows = std::fs::read_to_string(&arguments.data).map_err(|error| {
        Failure::usage_text(format_args!("cannot read {}: {error}", arguments.data.display()))
    })?;
    let judges = EmbeddedJudges::new(downloads::hub(output), config.run.threads);
    let bar = bar(output);
    let progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let calibration = rloom_run::calibrate_judge(
        &component.name,
        judge,
        reward.timeout(),
        reward.retries,
        &judges,
        &rows,
        arguments.questions,
        &progress,
    );
    bar.finish_and_clear();
    let calibration = calibration.map_err(Failure::from_run)?;
    let file = arguments.output.as_ref().or(judge.calibration.as_ref());
    if let Some(file) = file {
        calibration.save(file).map_err(Failure::failed)?;
        output.info(&format!("calibration: {}", output.paint(CYAN, &file.display().to_string())));
    }
    if output.json {
        return output.json(&calibration);
    }
    show(&calibration, judge.max_false_positive_rate, output.on_stdout())
}

/// The judge with this name, or the only one, with the reward that it belongs to.
fn judge_of<'c>(
    config: &'c Config,
    name: Option<&str>,
) -> Result<(&'c ComponentSettings, &'c ModelJudge, &'c RewardSettings), Failure> {
    let rollouts = config.stages.iter().filter_map(|stage| stage.rollout.as_ref());
    let of_sets = config.eval.iter().flat_map(|eval| &eval.sets).filter_map(|set| set.reward.as_ref());
    let of_eval = config.eval.iter().map(|eval| &eval.reward).chain(of_sets);
    let rewards = rollouts.map(|rollout| &rollout.reward).chain(of_eval);
    let mut judges: Vec<(&ComponentSettings, &ModelJudge, &RewardSettings)> = Vec::new();
    for reward in rewards {
        for component in &reward.components {
            let Kind::Judge(judge) = &component.kind else { continue };
            let is_known =
                judges.iter().any(|&(known, other, _)| known.name == component.name && other == judge);
            if !is_known && name.is_none_or(|name| component.name == name) {
                judges.push((component, judge, reward));
            }
        }
    }
    match judges[..] {
        [judge] => Ok(judge),
        [] => Err(Failure::usage_text(match name {
            Some(name) => format!("the configuration has no judge named `{name}`"),
            None => "the configuration has no component of kind `judge`".to_owned(),
        })),
        _ => {
            let names: Vec<String> =
                judges.iter().map(|(component, ..)| format!("`{}`", component.name)).collect();
            Err(Failure::usage_text(format_args!(
                "the configuration has several judges: choose one of {} with --component, or give them different names",
                names.join(", ")
            )))
        }
    }
}

fn bar(output: Output) -> ProgressBar {
    if !output.live {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("calibrate {bar:24} {pos}/{len}");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─"))
}

fn show(calibration: &Calibration, limit: Option<f64>, output: Output) -> Result<(), Failure> {
    let Agreement { judged, unreadable, accuracy, false_positive_rate, false_negative_rate, kappa } =
        calibration.labelled;
    let rate = |rate: Option<f64>| rate.map_or_else(|| "unknown".to_owned(), percent);
    let line = |name: &str, text: &str| output.data(&format!("{name:<17} {text}"));
    let unread =
        if unreadable > 0 { format!(", {unreadable} without a readable verdict") } else { String::new() };
    line("judge", &calibration.model)?;
    line("labelled", &format!("{judged} responses{unread}"))?;
    line("accuracy", &rate(accuracy))?;
    line("false positives", &rate(false_positive_rate))?;
    line("false negatives", &rate(false_negative_rate))?;
    line("Cohen's κ", &kappa.map_or_else(|| "unknown".to_owned(), |kappa| format!("{kappa:.2}")))?;
    if let Some(consistency) = calibration.order_swap_consistency {
        line("order swap", &format!("{} of pairs have the same result", percent(consistency)))?;
    }
    output.data("")?;
    output.data(
        &output.paint(BOLD, &format!("{:<58} {:>9} {:>6}", "response without content", "accepted", "of")),
    )?;
    for key in &calibration.master_keys {
        let shown = if key.key.starts_with('[') { key.key.clone() } else { format!("{:?}", key.key) };
        let unread =
            if key.unreadable > 0 { format!("   {} unreadable", key.unreadable) } else { String::new() };
        output.data(&format!(
            "{shown:<58} {:>9} {:>6}{unread}",
            rate(key.false_positive_rate()),
            key.judged
        ))?;
    }
    let Some(limit) = limit else { return Ok(()) };
    match calibration.worst() {
        Some((worst, _)) if worst <= limit => Ok(()),
        Some((worst, place)) => Err(Failure::failed_text(format_args!(
            "the judge accepts {} of bad responses ({place}), more than `max_false_positive_rate` ({}): runs will be refused",
            percent(worst),
            percent(limit)
        ))),
        None => Err(Failure::failed_text(
            "not all false-positive rates are known: runs will be refused. Label bad responses as well",
        )),
    }
}
