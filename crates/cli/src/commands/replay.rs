//! `rloom replay`: generates a sample of a run again and compares it with its record.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rloom_config::Config;
use rloom_run::lineage::LineageError;
use rloom_run::{Difference, FoundIn, Origin, Verdict};

use super::train::find_run;
use crate::arguments::Replay;
use crate::failure::Failure;
use crate::output::{CYAN, Output};
use crate::progress::downloads;
use crate::progress::numbers::duration;

pub(crate) fn run(arguments: &Replay, output: Output) -> Result<(), Failure> {
    let sample = arguments.sample.parse().map_err(|error: LineageError| Failure::usage(error))?;
    let run = find_run(&arguments.run)?;
    let config = Config::load(&[run.join("config.toml")], &[] as &[&str])?;
    let bar = bar(output);
    let mut progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let hub = downloads::hub(output);
    let replayed = rloom_run::replay(&run, &config, &sample, &hub, arguments.rebuild, &mut progress);
    bar.finish_and_clear();
    let replay = replayed.map_err(Failure::failed)?;
    if output.json {
        output.json(&replay)?;
    } else {
        show(&replay, output.on_stdout())?;
    }
    match &replay.verdict {
        Verdict::Equal => Ok(()),
        Verdict::Different { first } => {
            Err(Failure::failed_text(format_args!("the sample was not repeated: {}", difference(first))))
        }
    }
}

fn bar(output: Output) -> ProgressBar {
    if !output.live {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("retrain {bar:24} {pos}/{len} batches");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─"))
}

fn show(replay: &rloom_run::Replay, output: Output) -> Result<(), Failure> {
    let line = |what: &str, text: &str| output.data(&format!("{what:<12} {text}"));
    let found = match replay.found {
        FoundIn::Rollouts { step } => format!("trained on in step {step}"),
        FoundIn::Journal => "from the journal".to_owned(),
    };
    line(
        "sample",
        &format!("{}/{}/{}, {} tokens, {found}", replay.stage, replay.ticket, replay.sample, replay.tokens),
    )?;
    for (version, origin) in &replay.versions {
        let origin = match origin {
            Origin::Start => "start of the stage".to_owned(),
            Origin::Checkpoint(path) => output.paint(CYAN, &path.display().to_string()),
            Origin::Rebuilt { from } => format!("retrained from version {from}"),
        };
        line(&format!("version {version}"), &origin)?;
    }
    let verdict = match &replay.verdict {
        Verdict::Equal => "tokens and log-probabilities are bitwise identical".to_owned(),
        Verdict::Different { first } => difference(first),
    };
    line("verdict", &verdict)?;
    line("took", &duration(replay.seconds))
}

fn difference(first: &Difference) -> String {
    let token = |id: &Option<u32>| id.map_or_else(|| "no token".to_owned(), |id| format!("token {id}"));
    match first {
        Difference::Token { position, recorded, replayed, .. } => {
            format!("position {position}: recorded {}, replayed {}", token(recorded), token(replayed))
        }
        Difference::Logprob { position, recorded, replayed, .. } => format!(
            "position {position}: recorded log-probability {recorded:?}, replayed {replayed:?} (bits {:08x} and \
             {:08x})",
            recorded.to_bits(),
            replayed.to_bits()
        ),
    }
}
