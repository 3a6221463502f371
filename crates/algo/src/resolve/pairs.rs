use super::reader::{Reader, at_least_one, read, refuse};
use super::{extras, given};
use crate::error::Refusal;
use crate::{Aggregation, AlgoError, Algorithm, AlgorithmSettings, DataKind, Method, PreferenceKind};

/// A method that samples groups and trains on the best and the worst episode of each. The samples may be of any policy, so that
/// neither staleness nor another engine changes a setting.
pub(super) fn sampled(method: Method, asked: &AlgorithmSettings) -> Result<Algorithm, AlgoError> {
    let mut reader = Reader { asked: *asked, record: AlgorithmSettings::default() };
    let r = &mut reader;
    let group_size = read!(r.group_size or 2);
    if group_size < 2 {
        return Err(refuse("group_size", Refusal::NoPair { group_size }, "group_size of at least 2"));
    }
    let own = r.asked.preference.unwrap_or_default();
    let kind = own.kind.unwrap_or(PreferenceKind::Dpo);
    let preference = own.resolve(kind)?;
    if preference.data() != DataKind::Pairs {
        let hint = "preference = \"dpo\" or another loss of pairs";
        return Err(refuse("preference", Refusal::NotOfPairs { kind }, hint));
    }
    r.record.preference = Some(preference.settings());
    Ok(Algorithm {
        group_size,
        preference: Some(preference),
        epochs: at_least_one("epochs", read!(r.epochs or 1))?,
        minibatches: at_least_one("minibatches", read!(r.minibatches or 1))?,
        filters: extras::filters(r, None)?,
        overlong: extras::overlong(r)?,
        settings: reader.record,
        ..given(method, Aggregation::TokenMean)
    })
}
