//! Configuration of the CRI frontend.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The name of the runtime, unless it is configured.
pub const DEFAULT_RUNTIME_NAME: &str = "switchyard";

/// The most bytes of the name of the runtime.
const RUNTIME_NAME_MAX: usize = 63;

/// Configuration of the CRI frontend, the section `[cri]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The name of the runtime in answers to Version, of which kubelets make the first part of a node's
    /// `containerRuntimeVersion`.
    pub runtime_name: String,
    /// Lets every process of a pod with its own network namespace bind ports below 1024, by
    /// `net.ipv4.ip_unprivileged_port_start=0`. A sysctl that the pod sets itself takes precedence.
    pub unprivileged_ports: bool,
    /// Lets every process of such a pod send pings, by `net.ipv4.ping_group_range="0 2147483647"`.
    pub unprivileged_icmp: bool,
    /// The seccomp profile of containers that do not specify one.
    pub unset_seccomp: UnsetSeccomp,
    /// Limit in seconds for ExecSync to wait for output after the command has exited, while a child of the
    /// command still holds the output open; 0 waits without limit.
    pub exec_drain_seconds: u64,
}

/// The seccomp profile of a container that does not specify one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnsetSeccomp {
    /// No filter, as CRI specifies.
    Unconfined,
    /// The gateway's default profile.
    RuntimeDefault,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            runtime_name: DEFAULT_RUNTIME_NAME.to_owned(),
            unprivileged_ports: true,
            unprivileged_icmp: true,
            unset_seccomp: UnsetSeccomp::Unconfined,
            exec_drain_seconds: 15,
        }
    }
}

impl Config {
    /// `exec_drain_seconds` as a duration.
    pub(crate) const fn exec_drain(&self) -> Duration {
        match self.exec_drain_seconds {
            0 => Duration::MAX,
            seconds => Duration::from_secs(seconds),
        }
    }
}

/// Returns whether this can be the name of a runtime: up to 63 lower-case letters, digits and dashes between them, so that
/// `NAME://VERSION` is parsed by all who read it of a node.
#[must_use]
pub fn is_runtime_name(name: &str) -> bool {
    name.len() <= RUNTIME_NAME_MAX
        && name.split('-').all(|part| {
            let is_known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
            !part.is_empty() && part.bytes().all(is_known)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_runtimes_are_words_in_lower_case() {
        for good in ["switchyard", "containerd", "cri-o", "k3s", "a"] {
            assert!(is_runtime_name(good), "{good}");
        }
        for bad in [
            "",
            "Containerd",
            "cri_o",
            "containerd://1",
            "a b",
            "-a",
            "a-",
            "a--b",
            "\u{e4}",
            &"x".repeat(64),
        ] {
            assert!(!is_runtime_name(bad), "{bad}");
        }
    }

    #[test]
    fn empty_section_gives_the_defaults() {
        assert_eq!(toml::from_str::<Config>(""), Ok(Config::default()));
    }

    #[test]
    fn unknown_key_is_rejected() {
        let error =
            toml::from_str::<Config>("unprivilegedports = true").expect_err("the key is unknown");
        assert!(error.to_string().contains("unprivilegedports"), "{error}");
    }

    #[test]
    fn seccomp_default_is_kebab_case() {
        let config: Config =
            toml::from_str("unset_seccomp = \"runtime-default\"").expect("it is well formed");
        assert_eq!(config.unset_seccomp, UnsetSeccomp::RuntimeDefault);
    }

    #[test]
    fn zero_drain_timeout_waits_forever() {
        let config = Config {
            exec_drain_seconds: 0,
            ..Config::default()
        };
        assert_eq!(config.exec_drain(), Duration::MAX);
    }
}
