//! Directories in which plugins look for programs such as `iptables`.

use std::env;
use std::ffi::OsString;

/// The PATH of plugins if the daemon was started without one.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The `PATH` that plugins get: that of this process, or a default if it has none, as under some supervisors.
#[must_use]
pub fn program_path() -> OsString {
    path_or_default(env::var_os("PATH"))
}

/// Pure.
fn path_or_default(own: Option<OsString>) -> OsString {
    own.unwrap_or_else(|| OsString::from(DEFAULT_PATH))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugins_have_the_path_of_the_daemon_or_one_with_the_directories_of_root() {
        for (own, path) in [
            (None, DEFAULT_PATH),
            (Some("/bin"), "/bin"),
            (Some("/opt/a b/bin:/sbin"), "/opt/a b/bin:/sbin"),
            // It was set to that.
            (Some(""), ""),
        ] {
            let expected = OsString::from(path);
            assert_eq!(
                path_or_default(own.map(OsString::from)),
                expected,
                "{own:?}"
            );
        }
        let mut dirs = DEFAULT_PATH.split(':');
        assert!(dirs.any(|dir| dir == "/usr/sbin"));
    }
}
