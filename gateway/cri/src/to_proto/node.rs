//! Converts the node's conditions, handlers and features.

use switchyard_core::backend::{BackendStatus, CgroupDriver, Condition, Handler};
use switchyard_proto::cri::v1 as cri;

/// The status of the node. Until the gateway has recovered the state of its predecessor, the runtime is not
/// ready, whatever the backend reports.
pub(crate) fn status(
    backend: &BackendStatus,
    recovered: bool,
    handlers: &[Handler],
) -> cri::StatusResponse {
    let recovering = Condition::False {
        reason: "Recovering".to_owned(),
        message: "the gateway is recovering the state of its predecessor".to_owned(),
    };
    let runtime = if recovered {
        &backend.runtime
    } else {
        &recovering
    };
    cri::StatusResponse {
        status: Some(cri::RuntimeStatus {
            conditions: vec![
                condition("RuntimeReady", runtime),
                condition("NetworkReady", &backend.network),
            ],
        }),
        info: std::collections::BTreeMap::new(),
        runtime_handlers: runtime_handlers(handlers),
        features: Some(cri::RuntimeFeatures {
            supplemental_groups_policy: true,
            user_namespaces_host_network: handlers.iter().any(|handler| handler.user_namespaces),
            mount_options: true,
        }),
    }
}

/// The settings that the kubelet must match.
pub(crate) fn runtime_config(driver: CgroupDriver) -> cri::RuntimeConfigResponse {
    let driver = match driver {
        CgroupDriver::Systemd => cri::CgroupDriver::Systemd,
        CgroupDriver::Cgroupfs => cri::CgroupDriver::Cgroupfs,
    };
    cri::RuntimeConfigResponse {
        linux: Some(cri::LinuxRuntimeConfiguration {
            cgroup_driver: driver.into(),
        }),
    }
}

fn condition(name: &str, condition: &Condition) -> cri::RuntimeCondition {
    let (status, reason, message) = match condition {
        Condition::True => (true, String::new(), String::new()),
        Condition::False { reason, message } => (false, reason.clone(), message.clone()),
    };
    cri::RuntimeCondition {
        r#type: name.to_owned(),
        status,
        reason,
        message,
    }
}

/// All handlers; the default one is listed again with an empty name.
fn runtime_handlers(handlers: &[Handler]) -> Vec<cri::RuntimeHandler> {
    let wire = |name: &str, handler: &Handler| cri::RuntimeHandler {
        name: name.to_owned(),
        features: Some(cri::RuntimeHandlerFeatures {
            recursive_read_only_mounts: handler.recursive_readonly_mounts,
            user_namespaces: handler.user_namespaces,
        }),
    };
    let default = handlers.first().map(|handler| wire("", handler));
    let named = handlers.iter().filter(|handler| !handler.name.is_empty());
    default
        .into_iter()
        .chain(named.map(|handler| wire(&handler.name, handler)))
        .collect()
}
