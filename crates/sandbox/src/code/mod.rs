//! Programs judged by test cases.

mod cache;
mod case;
mod compare;
mod execution;
mod judge;
mod language;
mod slots;

pub use case::{Case, CaseError, cases};
pub use execution::execution;
pub use judge::{CaseVerdict, CodeJudge, CodeVerdict};
pub use language::Language;
