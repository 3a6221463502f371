use rloom_core::Ticket;
use rloom_sched::SchedError;

/// Errors of simulations, hardware profiles and calibrations.
#[derive(Debug, Clone, PartialEq, miette::Diagnostic, thiserror::Error)]
pub enum SimError {
    /// The scenario is invalid.
    #[error("invalid scenario: {0}")]
    Scenario(#[from] ScenarioError),
    /// The hardware profile is invalid.
    #[error("invalid hardware profile: {0}")]
    Profile(#[from] ProfileError),
    /// The run contains nothing to fit a profile to.
    #[error("cannot calibrate: the run has no step with recorded rollouts")]
    #[diagnostic(help("train at least a few steps of a stage that samples"))]
    NothingToCalibrate,
    /// The scheduler rejected its settings or an event.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Scheduler(#[from] SchedError),
    /// No events are left although the stage is not finished: a bug in the scheduler.
    #[error("simulation stalled after {seconds:.1} simulated seconds, at version {version}")]
    Stalled {
        /// Simulated time.
        seconds: f64,
        /// Version at that time.
        version: u64,
    },
    /// The simulation reached [`Scenario::max_events`](crate::Scenario::max_events).
    #[error("only {version} batches were trained after {events} events")]
    #[diagnostic(help("filters, failures or the staleness bound leave too few groups to train on"))]
    TooManyEvents {
        /// Events simulated.
        events: u64,
        /// Batches trained so far.
        version: u64,
    },
    /// The scheduler started an active group: a bug in the scheduler.
    #[error("group {} was started twice", .0.0)]
    AlreadyActive(Ticket),
    /// The scheduler trained, dropped or deferred a group that is not active: a bug in the scheduler.
    #[error("group {} is not active", .0.0)]
    NotActive(Ticket),
}

/// Invalid values in a [`Scenario`](crate::Scenario). `name` is the name of the field.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ScenarioError {
    /// A distribution that is not one of a quantity.
    #[error("`{name}`: {error}")]
    Distribution {
        /// Name of the field.
        name: &'static str,
        /// The violated rule.
        error: DistributionError,
    },
    /// A decoding rate that is not positive, or a table that is not ascending.
    #[error("`decode`: rates must be positive, and the concurrencies of a table must ascend from 1")]
    DecodeRate,
    /// Service times that are missing, not positive or not ascending.
    #[error("`decode`: service times must be positive, and lengths and times must ascend")]
    ServiceTimes,
    /// No replica, or a replica that decodes nothing.
    #[error("`rollout` needs at least one replica with a concurrency of at least 1")]
    NoReplicas,
    /// A rate that is not positive.
    #[error("`{name}` must be positive")]
    Rate {
        /// Name of the field.
        name: &'static str,
    },
    /// A duration that is negative or not finite.
    #[error("`{name}` must be finite and not negative")]
    Duration {
        /// Name of the field.
        name: &'static str,
    },
    /// A group without samples.
    #[error("`group_size` must be at least 1")]
    EmptyGroup,
    /// A fraction outside 0 to 1.
    #[error("`{name}` is {value}; it must be between 0 and 1")]
    Fraction {
        /// Name of the field.
        name: &'static str,
        /// Its value.
        value: f64,
    },
}

/// Invalid parameters of a [`Distribution`](crate::Distribution).
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum DistributionError {
    /// A constant that is negative or not finite.
    #[error("{0} is not a finite number of at least 0")]
    Constant(f64),
    /// Log-normal parameters out of range.
    #[error(
        "a log-normal distribution needs median > 0, sigma >= 0 and max > 0, not {median}, {sigma} and {max}"
    )]
    Lognormal {
        /// The median.
        median: f64,
        /// Standard deviation of the logarithm.
        sigma: f64,
        /// The upper limit.
        max: f64,
    },
    /// No quantiles, or quantiles that are negative, not finite or not ascending.
    #[error("quantiles must be a non-empty ascending list of finite numbers of at least 0")]
    Quantiles,
    /// A tail share outside 0 to 1.
    #[error("the share of the tail is {0}; it must be between 0 and 1")]
    TailShare(f64),
}

/// Reasons why a hardware profile cannot be read or written.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// Invalid TOML, or a missing or unknown key.
    #[error(transparent)]
    Parse(#[from] toml::de::Error),
    /// Neither `turn_share` nor `turn_tokens` is set.
    #[error("`[workload]` sets neither `turn_share` nor `turn_tokens`")]
    NoTurnLengths,
    /// `devices` or `devices_per_replica` is 0.
    #[error("`devices` and `devices_per_replica` must be at least 1")]
    NoDevices,
    /// The profile cannot be written as TOML.
    #[error(transparent)]
    Serialize(#[from] toml::ser::Error),
}
