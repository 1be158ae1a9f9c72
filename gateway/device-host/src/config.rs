//! Where plugins register.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The longest path of a unix socket that the kernel takes, without its final NUL.
pub(crate) const SOCKET_PATH_MAX: usize = 107;

/// The room for the names of sockets that a directory must leave, in bytes: those of generic-device-plugin are this long.
const SOCKET_NAME_ROOM: usize = 64;

/// `[devices.host]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Whether vendors' plugins are hosted.
    pub enabled: bool,
    /// The directory that is to them what a kubelet's directory for device plugins is, with our kubelet.sock.
    pub directory: PathBuf,
}

// === impl Config ===

impl Default for Config {
    fn default() -> Self {
        Self { enabled: false, directory: "/run/switchyard/device-plugins".into() }
    }
}

impl Config {
    /// Checks what the types cannot say. `kubelets` are directories in which a kubelet's own plugins are.
    ///
    /// # Errors
    /// The key that is wrong, and why.
    pub fn check(&self, kubelets: &[&Path]) -> Result<(), (&'static str, String)> {
        let most = SOCKET_PATH_MAX - SOCKET_NAME_ROOM - 1;
        let length = self.directory.as_os_str().len();
        if length > most {
            let why = format!(
                "the directory has {length} bytes, but with {most} at most the kernel takes the sockets of plugins there: use a shorter one"
            );
            return Err(("directory", why));
        }
        if kubelets.contains(&self.directory.as_path()) {
            let why = format!(
                "{} is the kubelet's own directory: plugins that are to register here need another",
                self.directory.display()
            );
            return Err(("directory", why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_no_socket_fits_in_or_that_is_the_kubelets_is_refused() {
        let kubelets = [Path::new("/var/lib/kubelet/device-plugins")];
        Config::default().check(&kubelets).unwrap();
        for directory in [format!("/{}", "x".repeat(42)), kubelets[0].display().to_string()] {
            let config = Config { directory: directory.into(), ..Config::default() };
            assert_eq!(config.check(&kubelets).unwrap_err().0, "directory");
        }
    }
}
