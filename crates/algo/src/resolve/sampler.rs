//! Settings of an algorithm apart from the defaults that its sampler gives it.

use crate::{Algorithm, AlgorithmSettings, CorrectionSettings, Sampler};

/// Changes of settings.
type Edit = fn(&mut AlgorithmSettings);

/// Removes one key each: those whose default depends on the sampler. A key precedes the keys that its default depends on.
const WITHOUT: [Edit; 6] = [
    |settings| settings.proximal = None,
    |settings| settings.ratio_to = None,
    |settings| edit_correction(settings, |correction| correction.low = None),
    |settings| edit_correction(settings, |correction| correction.high = None),
    |settings| edit_correction(settings, |correction| correction.action = None),
    |settings| edit_correction(settings, |correction| correction.level = None),
];

fn edit_correction(settings: &mut AlgorithmSettings, edit: fn(&mut CorrectionSettings)) {
    settings.correction.iter_mut().for_each(edit);
    settings.correction =
        settings.correction.filter(|correction| *correction != CorrectionSettings::default());
}

impl Algorithm {
    /// The settings without the keys that have the default of `sampler`, for which the algorithm was resolved. They
    /// resolve to this algorithm for `sampler`, and for another one to an algorithm with the defaults of that one.
    #[must_use]
    pub fn settings_for_any_sampler(&self, sampler: impl Into<Sampler>) -> AlgorithmSettings {
        let sampler = sampler.into();
        let mut settings = self.to_settings();
        for remove in WITHOUT {
            let mut shorter = settings;
            remove(&mut shorter);
            if Self::resolve(self.method, &shorter, sampler).is_ok_and(|algorithm| algorithm == *self) {
                settings = shorter;
            }
        }
        settings
    }
}
