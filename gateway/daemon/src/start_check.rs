//! The check of what a daemon needs at its start beside the configuration: calls of the kernel, groups of sockets, certificates,
//! keys and the token of its listeners, and the variables of tracing.
//!
//! The daemon, `switchyard config check --unit`, the package and the doctor use this one function, so that what one of
//! them accepts, the others do not refuse.

use std::fmt;

use switchyard_config::Config;
use switchyard_linux::host_features::{self, MissingFeature};
use switchyard_linux::report;
use switchyard_socket::listener::has_group;
use switchyard_telemetry::{TraceSettings, TraceSettingsError};

use crate::credentials::{self, CredentialError};

/// Reason why a daemon does not start although its configuration is valid.
#[derive(Debug, thiserror::Error)]
pub enum StartFault {
    /// The kernel does not have what the daemon needs, or a filter refuses it.
    #[error(transparent)]
    Host(#[from] MissingFeature),
    /// The group of a socket does not exist on this node.
    #[error(
        "{key}: group {group:?} does not exist: create it with groupadd, or set the key to another one"
    )]
    NoGroup {
        /// The key that names it.
        key: &'static str,
        /// The group.
        group: String,
    },
    /// A certificate, a key or a token is unusable.
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    /// The variables of tracing are unusable.
    #[error(transparent)]
    Traces(#[from] TraceSettingsError),
}

/// All faults of one start, at least one.
#[derive(Debug, thiserror::Error)]
pub struct StartFaults(Vec<StartFault>);

impl fmt::Display for StartFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, fault) in self.0.iter().enumerate() {
            let before = if number == 0 { "" } else { "; " };
            write!(f, "{before}{}", report(fault))?;
        }
        Ok(())
    }
}

impl StartFaults {
    /// The faults.
    #[must_use]
    pub fn all(&self) -> &[StartFault] {
        &self.0
    }
}

/// Checks the start of a daemon with this configuration and environment on this node. Returns the settings of tracing,
/// if it is enabled. Blocks on the file system.
///
/// # Errors
/// All faults.
pub fn check(
    config: &Config,
    env: &[(String, String)],
) -> Result<Option<TraceSettings>, StartFaults> {
    let mut faults: Vec<StartFault> = host_features::check_needed()
        .err()
        .into_iter()
        .map(StartFault::Host)
        .collect();
    let groups = config.socket_groups().into_iter();
    faults.extend(
        groups
            .filter(|(_, group)| !has_group(group))
            .map(|(key, group)| StartFault::NoGroup {
                key,
                group: group.to_owned(),
            }),
    );
    faults.extend(
        credentials::faults(config)
            .into_iter()
            .map(StartFault::Credentials),
    );
    let traces = traces(env).unwrap_or_else(|error| {
        faults.push(StartFault::Traces(error));
        None
    });
    if faults.is_empty() {
        Ok(traces)
    } else {
        Err(StartFaults(faults))
    }
}

fn traces(env: &[(String, String)]) -> Result<Option<TraceSettings>, TraceSettingsError> {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let settings = TraceSettings::from_env(env, &host.to_string_lossy())?;
    if let Some(settings) = &settings {
        settings.check()?;
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn defaults_have_no_fault() {
        assert!(check(&Config::default(), &[]).unwrap().is_none());
    }

    #[test]
    fn all_faults_of_a_start_are_reported_at_once() {
        let mut config = Config::default();
        config.admin.socket_group = Some("no-such-group".into());
        config.nomad.socket_group = Some("4711".into());
        config.cri.streaming.tls_certificate = Some("/none/cert.pem".into());
        config.cri.streaming.tls_key = Some("/none/key.pem".into());
        config.admin.metrics_bearer_token_file = Some("/none/token".into());
        let env = [variable("OTEL_EXPORTER_OTLP_ENDPOINT", "collector")];
        let faults = check(&config, &env).unwrap_err();
        let text = faults.to_string();
        for part in [
            "admin.socket_group: group \"no-such-group\"",
            "/none/cert.pem",
            "admin.metrics_bearer_token_file",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(faults.all().len(), 4, "{text}");

        // Files and groups of a frontend that is not enabled are not read.
        config.cri.enabled = false;
        config.admin.metrics_bearer_token_file = None;
        // A reload reads the same files as a start.
        assert!(credentials::NewCredentials::read(&config).is_ok());
        config.admin.socket_group = None;
        config.nomad.enabled = false;
        config.nomad.socket_group = Some("no-such-group".into());
        assert!(check(&config, &[]).is_ok());
    }

    #[test]
    fn authorities_of_the_collector_are_read() {
        let env = [
            variable(
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                "https://collector.example:4317",
            ),
            variable("OTEL_EXPORTER_OTLP_CERTIFICATE", "/none/ca.pem"),
        ];
        let faults = check(&Config::default(), &env).unwrap_err();
        assert!(faults.to_string().contains("/none/ca.pem"), "{faults}");
    }
}
