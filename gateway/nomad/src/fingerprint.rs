//! The health and attributes of the driver, as shown on an agent's node.
//!
//! The first response is sent immediately, from state in memory: a runtime that hangs does not block the
//! agent. Later ones are sent when something has changed, and every half minute.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use futures::stream;
use switchyard_core::backend::{BackendStatus, CgroupDriver, Condition, Handler};
use switchyard_core::gateway::Scope;
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_proto::nomad::drivers::proto::fingerprint_response::HealthState;
use switchyard_proto::nomad::shared::structs::{Attribute, attribute::Value};
use tokio::time::Instant;
use tonic::Status;

use crate::session::Session;

/// The interval between checks.
const POLL: Duration = Duration::from_secs(2);

/// The interval while the driver is unhealthy: jobs submitted meanwhile are not placed, and an agent's server
/// may not evaluate them again.
const POLL_UNHEALTHY: Duration = Duration::from_millis(200);

/// The interval after which an unchanged fingerprint is repeated.
const REPEAT: Duration = Duration::from_secs(30);

/// The fingerprints of the driver, the first immediately; ends only with the gateway.
pub(crate) fn stream(
    scope: Scope,
    session: Arc<Session>,
) -> impl Stream<Item = Result<nomad::FingerprintResponse, Status>> + Send {
    let ended = Box::pin(scope.ended());
    stream::unfold(
        (scope, session, ended, None),
        async |(scope, session, mut ended, mut sent)| {
            loop {
                let now = current(&scope, &session);
                let due = |(last, at): &(nomad::FingerprintResponse, Instant)| {
                    *last != now || at.elapsed() >= REPEAT
                };
                if sent.as_ref().is_none_or(due) {
                    sent = Some((now.clone(), Instant::now()));
                    return Some((Ok(now), (scope, session, ended, sent)));
                }
                let is_well = now.health() == HealthState::Healthy;
                tokio::select! {
                    () = tokio::time::sleep(if is_well { POLL } else { POLL_UNHEALTHY }) => {}
                    () = &mut ended => return None,
                }
            }
        },
    )
}

fn current(scope: &Scope, session: &Session) -> nomad::FingerprintResponse {
    fingerprint(
        &scope.status(),
        scope.is_recovered(),
        &scope.handlers(),
        session,
    )
}

/// The fingerprint of a driver. The description is constant while the health is: each change creates a node
/// event.
fn fingerprint(
    status: &BackendStatus,
    recovered: bool,
    handlers: &[Handler],
    session: &Session,
) -> nomad::FingerprintResponse {
    let (health, description) = match &status.runtime {
        Condition::False { reason, message: _ } => (
            HealthState::Unhealthy,
            format!("no task can be started ({reason}): `switchyard status` on the node says why"),
        ),
        Condition::True if !recovered => (
            HealthState::Unhealthy,
            "the gateway recovers what its predecessor left".to_owned(),
        ),
        Condition::True => (HealthState::Healthy, "Healthy".to_owned()),
    };
    nomad::FingerprintResponse {
        attributes: attributes(status, handlers, session),
        health: health.into(),
        health_description: description,
        err: String::new(),
    }
}

/// The node attributes `driver.<name>.…`. An attribute that is not known now is omitted, which leaves it
/// unchanged on the node. Also omitted, as by docker's driver, are those that would say no: jobs ask whether
/// they are set.
fn attributes(
    status: &BackendStatus,
    handlers: &[Handler],
    session: &Session,
) -> BTreeMap<String, Attribute> {
    let config = &session.config;
    let text = |text: &str| Value::StringVal(text.to_owned());
    let mut names: Vec<&str> = handlers
        .iter()
        .map(|handler| handler.name.as_str())
        .collect();
    names.sort_unstable();
    let cgroups = match status.cgroup_driver {
        CgroupDriver::Systemd => "systemd",
        CgroupDriver::Cgroupfs => "cgroupfs",
    };
    let mut facts = vec![
        ("version", text(env!("CARGO_PKG_VERSION"))),
        ("runtimes", text(&names.join(","))),
        ("os_type", text("linux")),
        ("cgroup_driver", text(cgroups)),
    ];
    for (name, enabled) in [
        ("privileged.enabled", config.allow_privileged),
        ("volumes.enabled", config.volumes.enabled),
    ] {
        if enabled {
            facts.push((name, Value::BoolVal(true)));
        }
    }
    if !status.version.is_empty() {
        facts.push(("runtime_version", text(&status.version)));
    }
    if let Some(address) = status.bridge_address {
        facts.push(("bridge_ip", text(&address.to_string())));
    }
    if let Some(limit) = config.pids_limit {
        facts.push(("pids.limit", Value::IntVal(limit.signed())));
    }
    facts
        .into_iter()
        .map(|(name, value)| {
            (
                format!("driver.{}.{name}", session.driver),
                Attribute {
                    value: Some(value),
                    unit: String::new(),
                },
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use switchyard_core::gateway::{Gateway, Limits};
    use switchyard_core::id::Owner;
    use switchyard_core::spec::PidsLimit;
    use switchyard_fake::Fake;

    use super::*;
    use crate::plugin_config::PluginConfig;
    use crate::session::Processors;

    fn session() -> Arc<Session> {
        Arc::new(Session {
            id: "1".into(),
            driver: "docker".into(),
            config: Arc::new(PluginConfig::default()),
            processors: Processors::default(),
            version: String::new(),
        })
    }

    fn healthy() -> BackendStatus {
        use switchyard_core::backend::Backend;
        Fake::new().status()
    }

    fn away(message: &str) -> BackendStatus {
        let runtime = Condition::False {
            reason: "ContainerdUnavailable".into(),
            message: message.to_owned(),
        };
        BackendStatus {
            runtime,
            ..healthy()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn fingerprint_comes_at_once_on_change_and_every_30_seconds() {
        let fake = Fake::new();
        fake.set_status(away("refused"));
        let gateway = Gateway::new(Arc::new(fake.clone()), Limits::default());
        let mut stream = Box::pin(stream(gateway.scope(Owner::Nomad), session()));
        let mut next = async || {
            let before = Instant::now();
            let sent = stream
                .next()
                .await
                .expect("it is open")
                .expect("it is no error");
            (sent.health(), before.elapsed())
        };
        assert_eq!(next().await, (HealthState::Unhealthy, Duration::ZERO));
        // A change of the message alone is not a change of the health.
        fake.set_status(away("timed out"));
        assert_eq!(next().await, (HealthState::Unhealthy, REPEAT));
        fake.set_status(healthy());
        gateway.recover().await.expect("the fake recovers");
        assert_eq!(next().await, (HealthState::Healthy, Duration::ZERO));
        gateway
            .shut_down(Duration::from_secs(1))
            .await
            .expect("nothing is in flight");
        assert!(stream.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn recovered_driver_is_fingerprinted_soon() {
        let fake = Fake::new();
        let gateway = Gateway::new(Arc::new(fake.clone()), Limits::default());
        let mut stream = Box::pin(stream(gateway.scope(Owner::Nomad), session()));
        let sent = stream
            .next()
            .await
            .expect("it is open")
            .expect("it is no error");
        assert_eq!(sent.health(), HealthState::Unhealthy);
        let before = Instant::now();
        let (sent, ()) = tokio::join!(stream.next(), async {
            tokio::time::sleep(POLL_UNHEALTHY / 2).await;
            gateway.recover().await.expect("the fake recovers");
        });
        assert_eq!(
            sent.expect("it is open").expect("it is no error").health(),
            HealthState::Healthy
        );
        assert_eq!(before.elapsed(), POLL_UNHEALTHY);
    }

    #[test]
    fn what_is_off_has_no_attribute() {
        let optional = |config: PluginConfig, status: &BackendStatus| {
            let session = Session {
                config: Arc::new(config),
                ..(*session()).clone()
            };
            let known = [
                "privileged.enabled",
                "volumes.enabled",
                "pids.limit",
                "bridge_ip",
                "runtime_version",
            ];
            let attributes = attributes(status, &[], &session);
            known
                .into_iter()
                .filter(|name| attributes.contains_key(&format!("driver.docker.{name}")))
                .collect::<Vec<_>>()
        };
        let bare = BackendStatus {
            bridge_address: None,
            version: String::new(),
            ..healthy()
        };
        let off = PluginConfig::default;
        let volumes = crate::plugin_config::VolumesConfig {
            enabled: true,
            ..Default::default()
        };
        for (config, expected) in [
            (
                PluginConfig {
                    allow_privileged: true,
                    ..off()
                },
                &["privileged.enabled"][..],
            ),
            (off(), &[]),
            (PluginConfig { volumes, ..off() }, &["volumes.enabled"]),
            (
                PluginConfig {
                    pids_limit: PidsLimit::new(100).ok(),
                    ..off()
                },
                &["pids.limit"],
            ),
        ] {
            assert_eq!(optional(config, &bare), expected);
        }
        let known = BackendStatus {
            bridge_address: Some([172, 26, 80, 1].into()),
            version: "2.1".into(),
            ..healthy()
        };
        assert_eq!(optional(off(), &known), ["bridge_ip", "runtime_version"]);
    }

    #[test]
    fn fingerprint_attributes_have_the_driver_name() {
        let status = BackendStatus {
            bridge_address: Some([172, 26, 80, 1].into()),
            ..away("refused")
        };
        let attributes = attributes(&status, &[], &session());
        assert!(
            attributes
                .keys()
                .all(|name| name.starts_with("driver.docker.")),
            "{attributes:?}"
        );
        let bridge = &attributes["driver.docker.bridge_ip"];
        assert_eq!(
            bridge.value,
            Some(Value::StringVal("172.26.80.1".into())),
            "jobs look for the node there"
        );
    }
}
