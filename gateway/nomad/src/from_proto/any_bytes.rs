//! Invariants for arbitrary bytes as a configuration: called by the fuzz target and the property tests.

use std::sync::Arc;

use switchyard_core::spec::{IpcMode, MountSource, PidMode, UtsMode};
use switchyard_core::{ErrorKind, Result};
use switchyard_proto::nomad::drivers::proto as nomad;

use super::plan;
use crate::plan::Plan;
use crate::plugin_config::{DEFAULT_CAPS, PluginConfig};
use crate::session::{Processors, Session};

const ALLOC_DIR: &str = "/var/nomad/alloc/a1";

/// Decodes bytes as the configuration of the plugin, and as that of a task of an operator who allows nothing
/// special. Malformed ones are refused, and a task that is accepted has no access to the host beyond its
/// allocation directory.
///
/// # Panics
/// An invariant is violated.
pub(crate) fn check(bytes: &[u8]) {
    if let Err(error) = PluginConfig::decode(bytes) {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    let task = nomad::TaskConfig {
        id: "a1/web/1".to_owned(),
        name: "web".to_owned(),
        alloc_id: "a1".to_owned(),
        alloc_dir: ALLOC_DIR.to_owned(),
        msgpack_driver_config: bytes.to_vec(),
        ..nomad::TaskConfig::default()
    };
    let made = match planned(&task) {
        Ok(made) => made,
        Err(error) => {
            let known = matches!(
                error.kind(),
                ErrorKind::InvalidArgument | ErrorKind::Unimplemented
            );
            assert!(known, "{:?} {error}", error.kind());
            return;
        }
    };
    let sandbox = &made.sandbox;
    let spec = &made.task;
    assert!(!sandbox.privileged && !spec.security.privileged);
    assert!(
        sandbox.ipc != IpcMode::Host && spec.pid != PidMode::Host && sandbox.uts != UtsMode::Host
    );
    for capability in &spec.security.capabilities.add {
        assert!(DEFAULT_CAPS.contains(&capability.as_str()), "{capability}");
    }
    assert_eq!(spec.security.capabilities.drop, ["ALL"]);
    for mount in &spec.mounts {
        match &mount.source {
            MountSource::Host { path, .. } => {
                assert!(path.starts_with(ALLOC_DIR), "{}", path.display())
            }
            MountSource::Beneath { root, .. } => {
                panic!("{}: nothing has been looked at", root.display())
            }
            MountSource::Tmpfs { .. } => {}
            MountSource::Nfs { export, .. } => {
                panic!("{export}: volumes need the operator's leave")
            }
            MountSource::Volume { name, .. } => panic!("{name}: volumes need the operator's leave"),
            MountSource::Image { reference, .. } => panic!("{reference}: nobody can ask for it"),
        }
        assert!(
            mount.destination.is_absolute(),
            "{}",
            mount.destination.display()
        );
    }
    assert_eq!(planned(&task).expect("it was made before"), made);
}

/// The plan of a task for an operator who allows nothing special.
pub(crate) fn planned(task: &nomad::TaskConfig) -> Result<Plan> {
    let session = Session {
        id: "s".to_owned(),
        driver: "switchyard".to_owned(),
        config: Arc::new(PluginConfig::default()),
        processors: Processors {
            cores: 2,
            total_mhz: 4000,
        },
        version: String::new(),
    };
    plan(task, &session)
}
