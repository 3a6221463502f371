//! Engines in other processes.
//!
//! [`Gang`] is a [`TrainEngine`](rloom_engine::TrainEngine) over PyTorch ranks.

mod gang;

pub use gang::{
    Gang, GangError, GangSettings, LocalRanks, PolicyHeads, RankCommand, RankDevice, RankDtype, RankLauncher,
    RankProcess,
};
