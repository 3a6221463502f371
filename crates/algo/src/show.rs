//! What `rloom algo list` and `rloom algo show` say.

use std::fmt::Write as _;

use crate::{Algorithm, Estimator, KlEstimator, KlPlacement, Method, PolicyLoss, Surrogate};

/// A method, for lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodInfo {
    /// The method.
    pub method: Method,
    /// What it is, in one line.
    pub summary: &'static str,
    /// Where it was published, with its arXiv number.
    pub paper: &'static str,
}

/// What cannot be read off the knobs.
struct Page {
    title: &'static str,
    summary: &'static str,
    paper: &'static str,
    sampled: &'static str,
    credit: &'static str,
    /// One line each.
    elsewhere: &'static [&'static str],
}

fn page(method: Method) -> Page {
    match method {
        Method::Sft => Page {
            title: "Supervised fine-tuning",
            summary: "Raises the likelihood of demonstrations",
            paper: "maximum likelihood; as a first stage: Ouyang et al. 2022, arXiv 2203.02155",
            sampled: "nothing: each task brings its demonstration",
            credit: "every completion token of the demonstration weighs the same; prompt tokens carry no loss",
            elsewhere: &[
                "The mean is over the completion tokens of the whole optimiser step, however it is split; trainers that \
                 average per micro-batch weigh the tokens of short micro-batches more.",
            ],
        },
        Method::Grpo => Page {
            title: "Group relative policy optimisation",
            summary: "Rewards normalised within each task's group, clipped ratio, mean per sequence",
            paper: "Shao et al. 2024 (DeepSeekMath), arXiv 2402.03300",
            sampled: "group_size completions of each task",
            credit: "all policy tokens of an episode share its advantage",
            elsewhere: &[
                "The paper's normaliser. TRL, verl, OpenRLHF and NeMo-RL default to the mean over all tokens under the \
                 same name: loss_aggregation = \"token_mean\".",
                "The standard deviation has n - 1 and includes the episode itself, as in TRL and verl; NeMo-RL \
                 leaves it out. TRL adds 1e-4 like here, verl 1e-6, OpenRLHF 1e-9.",
                "The paper has k3 in the loss with coefficient 0.04; today most runs have none, and so has this preset.",
            ],
        },
        Method::DrGrpo => Page {
            title: "Dr. GRPO: GRPO done right",
            summary: "GRPO without the division by standard deviation and by length",
            paper: "Liu et al. 2025, arXiv 2503.20783",
            sampled: "group_size completions of each task",
            credit: "all policy tokens of an episode share its advantage",
            elsewhere: &[
                "The normaliser is constant: sequences x completion limit. TRL's loss_type dr_grpo is the same, but its \
                 advantage must be set apart (scale_rewards none).",
                "OpenRLHF's dr_grpo drops the standard deviation only and keeps the mean over all tokens: here that \
                 is method \"grpo\" with advantage = \"group_mean\" and loss_aggregation = \"token_mean\".",
            ],
        },
        Method::Rloo => Page {
            title: "REINFORCE leave-one-out",
            summary: "Plain policy gradient of whole completions against the mean of the others",
            paper: "Ahmadian et al. 2024, arXiv 2402.14740; Kool et al. 2019",
            sampled: "group_size completions of each task",
            credit: "a completion is one action: all its policy tokens share its advantage",
            elsewhere: &[
                "TRL's RLOO clips the ratio of whole sequences and may take several steps per batch; with one step \
                 its gradient is this one. OpenRLHF's rloo is PPO's clipped loss over all tokens with this baseline.",
                "At a group of one verl gives the raw reward as advantage; here that is an error in the settings, \
                 and 0 where the others dropped out.",
            ],
        },
        Method::ReinforcePp => Page {
            title: "REINFORCE++",
            summary: "Per-token returns whitened over the batch, clipped ratio; needs no group",
            paper: "Hu 2025, arXiv 2501.03262",
            sampled: "group_size completions of each task; one is enough",
            credit: "a token gets the discounted sum of what follows it: its KL penalties, and the reward at the last token",
            elsewhere: &[
                "OpenRLHF's reinforce and verl's reinforce_plus_plus, with population variance of at least 1e-8 as \
                 there. OpenRLHF also clips rewards to +-10 first; here nothing is clipped in silence.",
            ],
        },
        Method::ReinforcePpBaseline => Page {
            title: "REINFORCE++ with the group's mean as baseline",
            summary: "Reward minus group mean, whitened over the batch, clipped ratio",
            paper: "Hu 2025, arXiv 2501.03262",
            sampled: "group_size completions of each task",
            credit: "all policy tokens of an episode share its advantage",
            elsewhere: &[
                "OpenRLHF's reinforce_baseline and verl's reinforce_plus_plus_baseline: no division by the group's \
                 standard deviation, but by the batch's.",
            ],
        },
    }
}

fn estimator_formula(estimator: Estimator) -> &'static str {
    match estimator {
        Estimator::Group { .. } => {
            "A_i = (R_i - mean(R)) / (std(R) + std_epsilon), over the group, std with n - 1"
        }
        Estimator::GroupMean => "A_i = R_i - mean(R), over the group",
        Estimator::Rloo => "A_i = R_i - mean of the other rewards of the group",
        Estimator::ReinforcePp { .. } => "A_t = sum over s >= t of gamma^(s-t) r_s,  r_s = [s last] R",
    }
}

fn loss_formula(loss: &PolicyLoss) -> String {
    let mut text = match loss.surrogate {
        Surrogate::PpoClip(clip) => {
            let mut text = "l_t = max(-rho_t A, -clip(rho_t, 1 - clip_low, 1 + clip_high) A)".to_owned();
            if clip.dual_clip.is_some() {
                text.push_str("\nwhere A < 0: min(l_t, -dual_clip A)");
            }
            text.push_str("\nrho_t = exp(lp_t - old_t), log-ratio clamped to +-20");
            text
        }
        Surrogate::Reinforce(r) => match r.level {
            crate::Level::Token => "l_t = -A lp_t".to_owned(),
            crate::Level::Sequence => "l_i = -A_i (sum over t of lp_t)".to_owned(),
        },
        Surrogate::Sft(_) => "l_t = -lp_t".to_owned(),
    };
    if let Some(kl) = loss.kl {
        text.push_str(match kl.estimator {
            KlEstimator::K1 => "\n+ kl.coef (lp_t - ref_t)",
            KlEstimator::K2 => "\n+ kl.coef (lp_t - ref_t)^2 / 2",
            KlEstimator::K3 => "\n+ kl.coef (exp(ref_t - lp_t) - (ref_t - lp_t) - 1)",
        });
    }
    if loss.entropy_coef != 0.0 {
        text.push_str("\n- entropy_coef H_t, the entropy over the whole vocabulary");
    }
    text
}

impl Method {
    /// What lists say of it.
    pub fn info(self) -> MethodInfo {
        let Page { summary, paper, .. } = page(self);
        MethodInfo { method: self, summary, paper }
    }
}

impl Algorithm {
    /// All methods, for `rloom algo list`.
    pub fn list() -> [MethodInfo; Method::ALL.len()] {
        Method::ALL.map(Method::info)
    }

    /// The text of `rloom algo show NAME`: what the preset computes, with its knobs' values.
    ///
    /// # Errors
    ///
    /// [`crate::AlgoError::UnknownMethod`], with a suggestion.
    pub fn show(name: &str) -> Result<String, crate::AlgoError> {
        Ok(Self::preset(name.parse()?).describe())
    }

    /// What this algorithm computes, in plain text: its equations, its source, and every knob it reads.
    pub fn describe(&self) -> String {
        let page = page(self.method);
        let summary = if *self == Self::preset(self.method) {
            page.summary
        } else {
            "The preset of that name, with overrides"
        };
        let mut out = format!("{} - {}\n{summary}.\n", self.method, page.title);
        let mut section = |title: &str, text: &str| {
            let _ = write!(out, "\n{title}\n");
            for line in text.lines() {
                for wrapped in wrap(line, 96) {
                    let _ = writeln!(out, "  {wrapped}");
                }
            }
        };
        section("Paper", page.paper);
        section("Sampled", page.sampled);
        if let Some(advantage) = self.advantage {
            let mut text = estimator_formula(advantage.estimator).to_owned();
            if advantage.kl_coef > 0.0 {
                text.push_str(match advantage.estimator {
                    Estimator::ReinforcePp { .. } => " - kl.coef (old_s - ref_s)",
                    _ => "\nR is the reward - kl.coef (sum over t of old_t - ref_t), held constant",
                });
            }
            if advantage.whiten {
                text.push_str(
                    "\nthen (A - mean) / sqrt(max(variance, 1e-8)), over the policy tokens of the batch",
                );
            }
            section("Advantage", &text);
        }
        section("Credit", page.credit);
        section("Loss", &loss_formula(&self.loss));
        let normaliser = if self.scope() == crate::Scope::Sequence {
            "mean over the sequences of the optimiser step".to_owned()
        } else {
            format!("{}: {}", self.loss.aggregation.name(), self.loss.aggregation.formula())
        };
        section("Normaliser", &normaliser);
        section("Knobs", &self.knobs());
        section("Elsewhere", &page.elsewhere.join("\n"));
        out
    }

    /// `key = value`, as a recipe has them.
    fn knobs(&self) -> String {
        let s = self.to_settings();
        let quoted = |name: &str| format!("\"{name}\"");
        let mut rows: Vec<(&str, String, &str)> = Vec::new();
        let mut knob = |key, value: Option<String>, meaning| {
            if let Some(value) = value {
                rows.push((key, value, meaning));
            }
        };
        knob("group_size", s.group_size.map(|v| v.to_string()), "episodes per task");
        knob("advantage", s.advantage.map(|v| quoted(v.name())), "how rewards become advantages");
        knob("std_epsilon", s.std_epsilon.map(|v| v.to_string()), "added to the standard deviation");
        knob("gamma", s.gamma.map(|v| format!("{v:?}")), "discount per policy token");
        knob("whiten", s.whiten.map(|v| v.to_string()), "whiten advantages over the batch");
        knob("loss", s.loss.map(|v| quoted(v.name())), "the policy loss");
        knob("level", s.level.map(|v| quoted(v.name())), "what is one action");
        knob("clip_low", s.clip_low.map(|v| v.to_string()), "the ratio's lower bound is 1 - clip_low");
        knob("clip_high", s.clip_high.map(|v| v.to_string()), "the ratio's upper bound is 1 + clip_high");
        if matches!(self.loss.surrogate, Surrogate::PpoClip(_)) {
            let value = s.dual_clip.map_or_else(|| "(none)".to_owned(), |v| format!("{v:?}"));
            knob("dual_clip", Some(value), "the ratio's bound where A < 0");
        }
        knob("loss_aggregation", s.loss_aggregation.map(|v| quoted(v.name())), "how tokens are averaged");
        knob("entropy_coef", s.entropy_coef.map(|v| format!("{v:?}")), "weight of the entropy bonus");
        knob("epochs", s.epochs.map(|v| v.to_string()), "passes over each batch");
        knob("minibatches", s.minibatches.map(|v| v.to_string()), "optimiser steps per pass");
        let kl = s.kl.unwrap_or_default();
        knob("kl.coef", kl.coef.map(|v| format!("{v:?}")), "weight of the KL to the reference; 0 loads none");
        knob(
            "kl.estimator",
            kl.estimator.map(|v| quoted(v.name())),
            "k1 in the reward, k2 or k3 in the loss",
        );
        knob("kl.placement", kl.placement.map(|v: KlPlacement| quoted(v.name())), "reward or loss");
        let mut text = String::new();
        for (key, value, meaning) in rows {
            let _ = writeln!(text, "{key:<16} = {value:<24} {meaning}");
        }
        text
    }
}

/// Breaks a line at spaces so that none is longer than `width`, where a word allows it. Keeps inner spacing.
fn wrap(line: &str, width: usize) -> Vec<&str> {
    let mut rest = line;
    let mut lines = Vec::new();
    while rest.len() > width {
        let Some(at) = rest.get(..=width).unwrap_or(rest).rfind(' ').filter(|&at| at > 0) else { break };
        lines.push(rest[..at].trim_end());
        rest = rest[at..].trim_start();
    }
    lines.push(rest.trim_end());
    lines
}
