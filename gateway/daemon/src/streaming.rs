//! The settings of the streaming server, from the configuration.

use std::time::Duration;

use switchyard_config::{Config, StreamingConfig};
use switchyard_streaming::{BindError, Config as Settings, Server};

/// Listens for clients of exec, attach and port-forward. Connections queue until the server runs.
pub(crate) async fn bind(config: &Config) -> Result<Server, BindError> {
    Server::bind(settings(&config.cri.streaming)).await
}

fn settings(config: &StreamingConfig) -> Settings {
    let StreamingConfig {
        listen,
        url: _,
        tls_certificate: _,
        tls_key: _,
        idle_timeout_seconds,
    } = config;
    Settings {
        address: *listen,
        base_url: config.base_url(),
        tls: config.tls(),
        idle_timeout: Duration::from_secs(*idle_timeout_seconds),
        ..Settings::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_streaming_configuration_gives_the_defaults() {
        let ours = settings(&StreamingConfig::default());
        let theirs = Settings::default();
        assert_eq!(
            (ours.address, ours.idle_timeout),
            (theirs.address, theirs.idle_timeout)
        );
        assert!(ours.base_url.is_none() && ours.tls.is_none());
    }

    #[test]
    fn streaming_files_and_url_are_passed_on() {
        let config = StreamingConfig {
            url: Some("https://node.example:10010".into()),
            tls_certificate: Some("/c".into()),
            tls_key: Some("/k".into()),
            ..StreamingConfig::default()
        };
        let settings = settings(&config);
        assert_eq!(
            settings.base_url.expect("it is one").as_str(),
            "https://node.example:10010/"
        );
        let tls = settings.tls.expect("both files are given");
        assert_eq!((tls.certificates, tls.key), ("/c".into(), "/k".into()));
    }
}
