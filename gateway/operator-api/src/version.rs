//! The version of this build.

/// The version of this build: that of the release's tag, if `SWITCHYARD_VERSION` was set for it, else Cargo's.
pub const VERSION: &str = match option_env!("SWITCHYARD_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// The source revision of this build, if `SWITCHYARD_REVISION` was set for it.
pub const REVISION: &str = match option_env!("SWITCHYARD_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};
