//! Checks of `[admin]`: whoever reaches the metrics listener from another host must show a right to it.

use std::net::IpAddr;

use super::Fault;
use crate::AdminConfig;

/// Maximum number of names in `admin.hosts`.
const HOSTS_MAX: usize = 32;

/// Checks the admin server.
pub(super) fn check(admin: &AdminConfig) -> Result<(), Fault> {
    check_hosts(&admin.hosts)?;
    check_metrics(admin)
}

/// Checks the names of the node for browsers.
fn check_hosts(hosts: &[String]) -> Result<(), Fault> {
    let fault = |why: String| Err(("admin.hosts".to_owned(), why));
    if hosts.len() > HOSTS_MAX {
        return fault(format!(
            "{} names are given, and at most {HOSTS_MAX} are allowed",
            hosts.len()
        ));
    }
    let is_name = |host: &str| {
        let labels = || host.split('.');
        let is_label = |label: &str| {
            (1..=63).contains(&label.len())
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        host.len() <= 253 && labels().all(is_label)
    };
    match hosts
        .iter()
        .find(|host| host.parse::<IpAddr>().is_err() && !is_name(host))
    {
        Some(wrong) => fault(format!(
            "{wrong:?} is neither a name nor an address: leave out scheme, port and path"
        )),
        None => Ok(()),
    }
}

/// Checks the metrics listener.
fn check_metrics(admin: &AdminConfig) -> Result<(), Fault> {
    let fault = |key: &str, why: String| Err((format!("admin.{key}"), why));
    let files = [
        (
            "metrics_tls_certificate",
            admin.metrics_tls_certificate.is_some(),
        ),
        ("metrics_tls_key", admin.metrics_tls_key.is_some()),
        ("metrics_client_ca", admin.metrics_client_ca.is_some()),
        (
            "metrics_bearer_token_file",
            admin.metrics_bearer_token_file.is_some(),
        ),
    ];
    let Some(address) = admin.metrics_listen else {
        return match files.iter().find(|(_, is_set)| *is_set) {
            Some((key, _)) => fault(
                key,
                "is only used with admin.metrics_listen: set that as well".into(),
            ),
            None => Ok(()),
        };
    };
    if admin.metrics_tls_certificate.is_some() != admin.metrics_tls_key.is_some() {
        let given = if admin.metrics_tls_key.is_some() {
            "metrics_tls_key"
        } else {
            "metrics_tls_certificate"
        };
        let why =
            "admin.metrics_tls_certificate and admin.metrics_tls_key must be set together".into();
        return fault(given, why);
    }
    let has_tls = admin.metrics_tls_certificate.is_some();
    if admin.metrics_client_ca.is_some() && !has_tls {
        let why = "clients can present certificates with TLS only: set admin.metrics_tls_certificate and admin.metrics_tls_key";
        return fault("metrics_client_ca", why.into());
    }
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    if !has_tls {
        let why = format!(
            "{address} is not loopback, where metrics are served with TLS only: set admin.metrics_tls_certificate and admin.metrics_tls_key, or listen on 127.0.0.1 behind a proxy"
        );
        return fault("metrics_listen", why);
    }
    if admin.metrics_client_ca.is_none() && admin.metrics_bearer_token_file.is_none() {
        let why = format!(
            "{address} is not loopback, where clients must show who they are: set admin.metrics_client_ca or admin.metrics_bearer_token_file"
        );
        return fault("metrics_listen", why);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The settings of a listener with these files.
    fn admin(listen: &str, files: &[&str]) -> AdminConfig {
        let file = |name: &str| files.contains(&name).then(|| format!("/etc/{name}").into());
        AdminConfig {
            metrics_listen: (!listen.is_empty()).then(|| listen.parse().unwrap()),
            metrics_tls_certificate: file("crt"),
            metrics_tls_key: file("key"),
            metrics_client_ca: file("ca"),
            metrics_bearer_token_file: file("token"),
            ..AdminConfig::default()
        }
    }

    #[test]
    fn metrics_listener_beyond_loopback_needs_tls_and_a_client_that_is_known() {
        for listen in [
            "0.0.0.0:9641",
            "[::]:9641",
            "192.0.2.1:0",
            "[::ffff:192.0.2.1]:9641",
        ] {
            for files in [
                &["crt", "key", "ca"][..],
                &["crt", "key", "token"],
                &["crt", "key", "ca", "token"],
            ] {
                assert_eq!(check(&admin(listen, files)), Ok(()), "{listen} {files:?}");
            }
            for files in [&[][..], &["token"]] {
                let (key, why) = check(&admin(listen, files)).unwrap_err();
                assert!(
                    key == "admin.metrics_listen" && why.contains("with TLS only"),
                    "{key}: {why}"
                );
            }
            let (key, why) = check(&admin(listen, &["crt", "key"])).unwrap_err();
            assert!(
                key == "admin.metrics_listen" && why.contains("who they are"),
                "{key}: {why}"
            );
        }
    }

    #[test]
    fn metrics_listener_on_loopback_needs_nothing() {
        for listen in [
            "127.0.0.1:9641",
            "[::1]:9641",
            "127.1.2.3:0",
            "[::ffff:127.0.0.1]:9641",
        ] {
            for files in [&[][..], &["token"], &["crt", "key"], &["crt", "key", "ca"]] {
                assert_eq!(check(&admin(listen, files)), Ok(()), "{listen} {files:?}");
            }
        }
    }

    #[test]
    fn hosts_are_names_or_addresses_without_port() {
        let with = |hosts: &[&str]| AdminConfig {
            hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
            ..AdminConfig::default()
        };
        assert_eq!(
            check(&with(&[
                "node7",
                "node-7.example.org",
                "10.0.0.7",
                "2001:db8::1"
            ])),
            Ok(())
        );
        for wrong in [
            "",
            "*.example",
            "node7:9640",
            "https://node7",
            "node7/",
            "a..b",
            "[::1]",
            "ä",
        ] {
            let (key, why) = check(&with(&[wrong])).unwrap_err();
            assert!(
                key == "admin.hosts" && why.contains("neither a name"),
                "{wrong}: {why}"
            );
        }
        assert!(
            check(&with(&["n"; 33]))
                .unwrap_err()
                .1
                .contains("at most 32")
        );
    }

    #[test]
    fn files_that_do_nothing_are_refused() {
        for (listen, files, key) in [
            ("", &["token"][..], "admin.metrics_bearer_token_file"),
            ("", &["crt", "key"], "admin.metrics_tls_certificate"),
            ("127.0.0.1:9641", &["crt"], "admin.metrics_tls_certificate"),
            ("127.0.0.1:9641", &["key"], "admin.metrics_tls_key"),
            ("127.0.0.1:9641", &["ca"], "admin.metrics_client_ca"),
        ] {
            assert_eq!(
                check(&admin(listen, files)).unwrap_err().0,
                key,
                "{listen} {files:?}"
            );
        }
    }
}
