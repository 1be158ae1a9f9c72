//! Configuration: where the kubelet is found.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The longest path of a unix socket that the kernel accepts, without the final NUL.
const SOCKET_PATH_MAX: usize = 107;

/// The longest name of an endpoint's socket, in bytes; see `endpoint`.
pub(crate) const SOCKET_NAME_MAX: usize = 48;

/// `[devices.kubelet]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// True if device groups that have a resource name are offered to a kubelet.
    pub enabled: bool,
    /// The kubelet's directory for device plugins, which contains its kubelet.sock.
    pub directory: PathBuf,
    /// The directory that the kubelet's plugin watcher watches (`plugins_registry`). If set, sockets are
    /// created there to be found, instead of registering; `None` to register.
    pub plugin_watcher_directory: Option<PathBuf>,
    /// The socket of the kubelet's pod resources API; it is read where it exists.
    pub pod_resources_socket: PathBuf,
}

// === impl Config ===

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            directory: "/var/lib/kubelet/device-plugins".into(),
            plugin_watcher_directory: None,
            pod_resources_socket: "/var/lib/kubelet/pod-resources/kubelet.sock".into(),
        }
    }
}

impl Config {
    /// Checks the values.
    ///
    /// # Errors
    /// The wrong key, and why it is wrong.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let directories = [
            ("directory", Some(&self.directory)),
            (
                "plugin_watcher_directory",
                self.plugin_watcher_directory.as_ref(),
            ),
        ];
        for (key, path) in directories {
            let most = SOCKET_PATH_MAX - SOCKET_NAME_MAX - 1;
            let length = path.map_or(0, |path| path.as_os_str().len());
            if length > most {
                return Err((key, too_long("the directory", length, most)));
            }
        }
        let length = self.pod_resources_socket.as_os_str().len();
        if length > SOCKET_PATH_MAX {
            return Err((
                "pod_resources_socket",
                too_long("the path", length, SOCKET_PATH_MAX),
            ));
        }
        Ok(())
    }

    /// The configured paths, with their keys.
    pub fn paths(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let always = [
            ("directory", self.directory.as_path()),
            ("pod_resources_socket", self.pod_resources_socket.as_path()),
        ];
        let watcher = self
            .plugin_watcher_directory
            .as_deref()
            .map(|path| ("plugin_watcher_directory", path));
        always.into_iter().chain(watcher)
    }
}

fn too_long(what: &str, length: usize, most: usize) -> String {
    format!(
        "{what} has {length} bytes, but the path of a socket there may have {most} at most: use a shorter one"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_no_socket_fits_in_is_refused_by_its_key() {
        Config::default().check().unwrap();
        let long = PathBuf::from(format!("/{}", "x".repeat(60)));
        let config = Config {
            plugin_watcher_directory: Some(long.clone()),
            ..Config::default()
        };
        assert_eq!(config.check().unwrap_err().0, "plugin_watcher_directory");
        assert_eq!(
            Config {
                directory: long,
                ..Config::default()
            }
            .check()
            .unwrap_err()
            .0,
            "directory"
        );
    }
}
