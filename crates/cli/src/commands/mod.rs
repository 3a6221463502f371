//! The commands, one per module.

pub(crate) mod algo;
pub(crate) mod bench;
pub(crate) mod chat;
pub(crate) mod cluster;
pub(crate) mod doctor;
pub(crate) mod engines;
pub(crate) mod eval;
pub(crate) mod export;
mod export_model;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod node;
pub(crate) mod plan;
pub(crate) mod play;
pub(crate) mod policy;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod reward;
pub(crate) mod sandbox;
pub(crate) mod serve;
pub(crate) mod track;
pub(crate) mod train;
