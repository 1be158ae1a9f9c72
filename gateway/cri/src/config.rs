//! Configuration of the CRI frontend.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Configuration of the CRI frontend, the section `[cri]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
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

#[cfg(test)]
mod tests {
    use super::*;

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
