//! A tabular softmax policy and two games for it to learn.

use rloom_core::RandomKey;

pub(crate) const ACTIONS: usize = 4;

/// Logits `[state][action]`.
#[derive(Clone)]
pub(crate) struct Table(Vec<[f64; ACTIONS]>);

/// Actions of an episode and their results.
#[derive(Clone, Default)]
pub(crate) struct Episode {
    pub(crate) states: Vec<usize>,
    pub(crate) actions: Vec<usize>,
    /// Fraction of right actions.
    pub(crate) share: f64,
    /// 1 if every token is as required, else 0.
    pub(crate) solved: f64,
}

impl Table {
    pub(crate) fn uniform(states: usize) -> Self {
        Self(vec![[0.0; ACTIONS]; states])
    }

    pub(crate) fn probabilities(&self, state: usize) -> [f64; ACTIONS] {
        let e = self.0[state].map(f64::exp);
        let sum: f64 = e.iter().sum();
        e.map(|x| x / sum)
    }

    fn entropy(&self, state: usize) -> f64 {
        -self.probabilities(state).iter().map(|p| p * p.ln()).sum::<f64>()
    }

    pub(crate) fn logprobs(&self, e: &Episode) -> Vec<f32> {
        e.states.iter().zip(&e.actions).map(|(&s, &a)| self.probabilities(s)[a].ln() as f32).collect()
    }

    pub(crate) fn entropies(&self, e: &Episode) -> Vec<f32> {
        e.states.iter().map(|&s| self.entropy(s) as f32).collect()
    }

    fn draw(&self, state: usize, uniform: f64) -> usize {
        let mut left = uniform;
        let reached = self.probabilities(state).iter().position(|p| {
            left -= p;
            left < 0.0
        });
        reached.unwrap_or(ACTIONS - 1)
    }

    fn likeliest(&self, state: usize) -> usize {
        let p = self.probabilities(state);
        (0..ACTIONS).fold(0, |best, a| if p[a] > p[best] { a } else { best })
    }

    /// Plain gradient descent on the derivatives by each log-probability and each entropy, all taken at `before`.
    pub(crate) fn descend(
        &mut self,
        before: &Self,
        e: &Episode,
        d_logprob: &[f32],
        d_entropy: &[f32],
        rate: f64,
    ) {
        for (t, (&state, &action)) in e.states.iter().zip(&e.actions).enumerate() {
            let (p, entropy) = (before.probabilities(state), before.entropy(state));
            let d_entropy = d_entropy.get(t).copied().map_or(0.0, f64::from);
            for (k, logit) in self.0[state].iter_mut().enumerate() {
                let of_lp = f64::from(u8::from(k == action)) - p[k];
                let of_entropy = -p[k] * (p[k].ln() + entropy);
                *logit -= rate * (f64::from(d_logprob[t]) * of_lp + d_entropy * of_entropy);
            }
        }
    }
}

fn right_action(state: usize) -> usize {
    (3 * state + 1) % ACTIONS
}

/// Choice of the next action.
#[derive(Clone, Copy)]
pub(crate) enum Choose {
    Sample(RandomKey),
    Greedy,
    /// The right action, as a demonstration.
    Right,
}

/// Game to be learned.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Game {
    /// Three tasks of one to three tokens; each position of each task has its own state.
    Words,
    /// A row of rooms: the right action leads to the next one, any other stays, so that states repeat.
    Rooms,
}

const LONGEST_WORD: usize = 3;
const ROOMS: usize = 3;
const TURNS: usize = 6;

impl Game {
    pub(crate) fn tasks(self) -> usize {
        match self {
            Self::Words => LONGEST_WORD,
            Self::Rooms => 1,
        }
    }

    pub(crate) fn states(self) -> usize {
        match self {
            Self::Words => LONGEST_WORD * LONGEST_WORD,
            Self::Rooms => ROOMS,
        }
    }

    pub(crate) fn limit(self) -> usize {
        match self {
            Self::Words => LONGEST_WORD,
            Self::Rooms => TURNS,
        }
    }

    /// Mean probability of the right action over the visited states.
    pub(crate) fn skill(self, policy: &Table) -> f64 {
        let met: Vec<usize> = match self {
            Self::Words => {
                (0..LONGEST_WORD).flat_map(|w| (0..=w).map(move |t| w * LONGEST_WORD + t)).collect()
            }
            Self::Rooms => (0..ROOMS).collect(),
        };
        met.iter().map(|&s| policy.probabilities(s)[right_action(s)]).sum::<f64>() / met.len() as f64
    }

    pub(crate) fn play(self, policy: &Table, task: usize, choose: Choose) -> Episode {
        let mut e = Episode::default();
        let mut act = |state: usize| {
            let action = match choose {
                Choose::Sample(key) => policy.draw(state, key.stream().uniform(e.states.len() as u64)),
                Choose::Greedy => policy.likeliest(state),
                Choose::Right => right_action(state),
            };
            e.states.push(state);
            e.actions.push(action);
            action == right_action(state)
        };
        let mut right = 0;
        match self {
            Self::Words => right = (0..=task).filter(|t| act(task * LONGEST_WORD + t)).count(),
            Self::Rooms => {
                for _ in 0..TURNS {
                    right += usize::from(right < ROOMS && act(right));
                }
            }
        }
        e.share = right as f64 / e.states.len() as f64;
        e.solved = match self {
            Self::Words => f64::from(u8::from(right == task + 1)),
            Self::Rooms => f64::from(u8::from(right == ROOMS)),
        };
        e
    }
}

/// State key of a room.
pub(crate) fn room(state: usize) -> &'static str {
    ["first room", "second room", "third room"][state]
}
