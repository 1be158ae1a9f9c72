//! The default AppArmor profile.

/// The name of the default profile.
pub(crate) const DEFAULT_PROFILE: &str = "switchyard-default";

/// Its text, in the language of apparmor.d(5).
pub(crate) const TEXT: &str = include_str!("switchyard-default");
