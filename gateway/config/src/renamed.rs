//! Keys of older versions that have another name now: their values count, with a warning.

/// A key, or a section, of older versions.
#[derive(Debug)]
pub(super) struct RenamedKey {
    /// Its dotted path in older versions.
    pub(super) key: &'static str,
    /// The present one.
    pub(super) to: &'static str,
    /// The first version with the present one.
    pub(super) since: &'static str,
}

/// All renamed keys. None has been renamed so far.
pub(super) const RENAMED: &[RenamedKey] = &[];

impl RenamedKey {
    /// The warning about a value for it, which has no effect if the same source also sets the present key.
    pub(super) fn warning(&self, is_set_beside: bool) -> String {
        let Self { key, to, since } = self;
        if is_set_beside {
            format!(
                "{key}: has no effect, because {to} is set as well, its name since version {since}: delete the key"
            )
        } else {
            format!("{key}: is named {to} since version {since}: rename the key")
        }
    }
}
