//! Routing of calls: which are answered by the launcher, which by the daemon, and which by neither.

use super::launch::Role;

/// The process that answers a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallTarget {
    /// The launcher answers it.
    Local(LocalCall),
    /// The daemon answers it.
    Daemon(DaemonCall),
    /// No such service exists.
    Unknown,
}

/// The treatment of a call that the daemon answers, if the daemon ends before and the launcher outlives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DaemonCall {
    /// `RecoverTask`: it is repeated with the next daemon, and until its answer the launcher outlives its daemons.
    Recovery,
    /// `StartTask`: it is repeated with the next daemon, and the task's output stays open meanwhile.
    Start,
    /// It is repeated with the next daemon: it changes nothing, or what a former daemon has done of it is found.
    Repeated,
    /// It fails: its effect would come twice, or it is a stream.
    Once,
}

/// A call that the launcher answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LocalCall {
    /// A call of every plugin.
    Base(BaseCall),
    /// A call of the task driver.
    Driver(DriverCall),
    /// The `Fingerprint` call of the device plugin.
    DeviceFingerprint,
    /// A call of go-plugin itself.
    Host(GoPluginCall),
}

/// Calls about the plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BaseCall {
    PluginInfo,
    ConfigSchema,
    SetConfig,
}

/// Calls about the driver that concern no task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DriverCall {
    Init,
    Shutdown,
    Capabilities,
    TaskConfigSchema,
    Fingerprint,
    TaskEvents,
}

/// Calls of go-plugin itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GoPluginCall {
    HealthCheck,
    HealthWatch,
    Shutdown,
    Stdio,
    Broker,
}

/// Chooses who answers the call with this path, `/package.Service/Method`.
pub(super) fn target_of(role: Role, path: &str) -> CallTarget {
    let Some((service, method)) = path.trim_start_matches('/').split_once('/') else {
        return CallTarget::Unknown;
    };
    let ours = |known: Option<LocalCall>, else_: CallTarget| known.map_or(else_, CallTarget::Local);
    match (service, role) {
        ("hashicorp.nomad.plugins.base.proto.BasePlugin", _) => {
            ours(base(method).map(LocalCall::Base), CallTarget::Unknown)
        }
        ("hashicorp.nomad.plugins.drivers.proto.Driver", Role::Driver) => {
            let daemon = CallTarget::Daemon(driver_in_daemon(method));
            ours(driver(method).map(LocalCall::Driver), daemon)
        }
        ("hashicorp.nomad.plugins.device.DevicePlugin", Role::Device) => ours(
            (method == "Fingerprint").then_some(LocalCall::DeviceFingerprint),
            CallTarget::Daemon(DaemonCall::Once),
        ),
        (service, _) => ours(
            host(service, method).map(LocalCall::Host),
            CallTarget::Unknown,
        ),
    }
}

fn base(method: &str) -> Option<BaseCall> {
    Some(match method {
        "PluginInfo" => BaseCall::PluginInfo,
        "ConfigSchema" => BaseCall::ConfigSchema,
        "SetConfig" => BaseCall::SetConfig,
        _ => return None,
    })
}

fn driver(method: &str) -> Option<DriverCall> {
    Some(match method {
        "Init" => DriverCall::Init,
        "Shutdown" => DriverCall::Shutdown,
        "Capabilities" => DriverCall::Capabilities,
        "TaskConfigSchema" => DriverCall::TaskConfigSchema,
        "Fingerprint" => DriverCall::Fingerprint,
        "TaskEvents" => DriverCall::TaskEvents,
        _ => return None,
    })
}

/// The treatment of a call of the driver that the daemon answers.
fn driver_in_daemon(method: &str) -> DaemonCall {
    match method {
        "RecoverTask" => DaemonCall::Recovery,
        "StartTask" => DaemonCall::Start,
        "WaitTask" | "StopTask" | "DestroyTask" | "InspectTask" | "CreateNetwork"
        | "DestroyNetwork" => DaemonCall::Repeated,
        // `SignalTask`, `ExecTask`, streams, and what Nomad adds later.
        _ => DaemonCall::Once,
    }
}

fn host(service: &str, method: &str) -> Option<GoPluginCall> {
    Some(match (service, method) {
        ("grpc.health.v1.Health", "Check") => GoPluginCall::HealthCheck,
        ("grpc.health.v1.Health", "Watch") => GoPluginCall::HealthWatch,
        ("plugin.GRPCController", "Shutdown") => GoPluginCall::Shutdown,
        ("plugin.GRPCStdio", "StreamStdio") => GoPluginCall::Stdio,
        ("plugin.GRPCBroker", "StartStream") => GoPluginCall::Broker,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: &str = "/hashicorp.nomad.plugins.drivers.proto.Driver";
    const DEVICE: &str = "/hashicorp.nomad.plugins.device.DevicePlugin";

    #[test]
    fn task_and_device_calls_are_forwarded_also_unknown_ones() {
        for (method, treatment) in [
            ("RecoverTask", DaemonCall::Recovery),
            ("StartTask", DaemonCall::Start),
            ("WaitTask", DaemonCall::Repeated),
            ("DestroyTask", DaemonCall::Repeated),
            ("SignalTask", DaemonCall::Once),
            ("ExecTask", DaemonCall::Once),
            ("ExecTaskStreaming", DaemonCall::Once),
            ("TaskStats", DaemonCall::Once),
            ("SomethingNew", DaemonCall::Once),
        ] {
            assert_eq!(
                target_of(Role::Driver, &format!("{DRIVER}/{method}")),
                CallTarget::Daemon(treatment),
                "{method}"
            );
        }
        for method in ["Reserve", "Stats"] {
            assert_eq!(
                target_of(Role::Device, &format!("{DEVICE}/{method}")),
                CallTarget::Daemon(DaemonCall::Once),
                "{method}"
            );
        }
    }

    #[test]
    fn agent_start_calls_are_answered_locally() {
        for role in [Role::Driver, Role::Device] {
            let info = target_of(
                role,
                "/hashicorp.nomad.plugins.base.proto.BasePlugin/PluginInfo",
            );
            assert_eq!(
                info,
                CallTarget::Local(LocalCall::Base(BaseCall::PluginInfo))
            );
            let end = target_of(role, "/plugin.GRPCController/Shutdown");
            assert_eq!(
                end,
                CallTarget::Local(LocalCall::Host(GoPluginCall::Shutdown))
            );
        }
        let events = target_of(Role::Driver, &format!("{DRIVER}/TaskEvents"));
        assert_eq!(
            events,
            CallTarget::Local(LocalCall::Driver(DriverCall::TaskEvents))
        );
        let devices = target_of(Role::Device, &format!("{DEVICE}/Fingerprint"));
        assert_eq!(devices, CallTarget::Local(LocalCall::DeviceFingerprint));
    }

    #[test]
    fn plugin_kinds_are_exclusive() {
        assert_eq!(
            target_of(Role::Device, &format!("{DRIVER}/StartTask")),
            CallTarget::Unknown
        );
        assert_eq!(
            target_of(Role::Driver, &format!("{DEVICE}/Reserve")),
            CallTarget::Unknown
        );
        for path in [
            "",
            "/",
            "/x",
            "/switchyard.nomad.v1.Sessions/Open",
            "/plugin.GRPCBroker/Other",
        ] {
            assert_eq!(target_of(Role::Driver, path), CallTarget::Unknown, "{path}");
        }
    }
}
