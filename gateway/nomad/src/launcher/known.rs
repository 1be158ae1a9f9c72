//! Which calls a launcher answers by itself, which are the daemon's, and which are nobody's.

use super::Role;

/// Whose a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// The launcher answers it.
    Ours(Known),
    /// The daemon does.
    Daemons,
    /// There is no such service.
    Nobodys,
}

/// A call that the launcher answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// The plugin's own, of whatever kind.
    Base(Base),
    /// The task driver's.
    Driver(Driver),
    /// The one of the device plugin.
    DeviceFingerprint,
    /// Those that every host of go-plugin may make.
    Host(Host),
}

/// Calls about the plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    PluginInfo,
    ConfigSchema,
    SetConfig,
}

/// Calls about the driver, and about no task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Driver {
    Init,
    Shutdown,
    Capabilities,
    TaskConfigSchema,
    Fingerprint,
    TaskEvents,
}

/// Calls of go-plugin itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Host {
    HealthCheck,
    HealthWatch,
    Shutdown,
    Stdio,
    Broker,
}

/// Whose the call with this path is, `/package.Service/Method`.
pub(super) fn whose(role: Role, path: &str) -> Whose {
    let Some((service, method)) = path.trim_start_matches('/').split_once('/') else { return Whose::Nobodys };
    let ours = |known: Option<Known>, else_: Whose| known.map_or(else_, Whose::Ours);
    match (service, role) {
        ("hashicorp.nomad.plugins.base.proto.BasePlugin", _) => {
            ours(base(method).map(Known::Base), Whose::Nobodys)
        }
        ("hashicorp.nomad.plugins.drivers.proto.Driver", Role::Driver) => {
            ours(driver(method).map(Known::Driver), Whose::Daemons)
        }
        ("hashicorp.nomad.plugins.device.DevicePlugin", Role::Device) => {
            ours((method == "Fingerprint").then_some(Known::DeviceFingerprint), Whose::Daemons)
        }
        (service, _) => ours(host(service, method).map(Known::Host), Whose::Nobodys),
    }
}

fn base(method: &str) -> Option<Base> {
    Some(match method {
        "PluginInfo" => Base::PluginInfo,
        "ConfigSchema" => Base::ConfigSchema,
        "SetConfig" => Base::SetConfig,
        _ => return None,
    })
}

fn driver(method: &str) -> Option<Driver> {
    Some(match method {
        "Init" => Driver::Init,
        "Shutdown" => Driver::Shutdown,
        "Capabilities" => Driver::Capabilities,
        "TaskConfigSchema" => Driver::TaskConfigSchema,
        "Fingerprint" => Driver::Fingerprint,
        "TaskEvents" => Driver::TaskEvents,
        _ => return None,
    })
}

fn host(service: &str, method: &str) -> Option<Host> {
    Some(match (service, method) {
        ("grpc.health.v1.Health", "Check") => Host::HealthCheck,
        ("grpc.health.v1.Health", "Watch") => Host::HealthWatch,
        ("plugin.GRPCController", "Shutdown") => Host::Shutdown,
        ("plugin.GRPCStdio", "StreamStdio") => Host::Stdio,
        ("plugin.GRPCBroker", "StartStream") => Host::Broker,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRIVER: &str = "/hashicorp.nomad.plugins.drivers.proto.Driver";
    const DEVICE: &str = "/hashicorp.nomad.plugins.device.DevicePlugin";

    #[test]
    fn what_is_about_tasks_and_devices_is_the_daemons_also_what_comes_later() {
        for method in
            ["StartTask", "RecoverTask", "WaitTask", "ExecTaskStreaming", "TaskStats", "SomethingNew"]
        {
            assert_eq!(whose(Role::Driver, &format!("{DRIVER}/{method}")), Whose::Daemons, "{method}");
        }
        for method in ["Reserve", "Stats"] {
            assert_eq!(whose(Role::Device, &format!("{DEVICE}/{method}")), Whose::Daemons, "{method}");
        }
    }

    #[test]
    fn what_an_agent_needs_to_start_is_answered_here() {
        for role in [Role::Driver, Role::Device] {
            let info = whose(role, "/hashicorp.nomad.plugins.base.proto.BasePlugin/PluginInfo");
            assert_eq!(info, Whose::Ours(Known::Base(Base::PluginInfo)));
            let end = whose(role, "/plugin.GRPCController/Shutdown");
            assert_eq!(end, Whose::Ours(Known::Host(Host::Shutdown)));
        }
        let events = whose(Role::Driver, &format!("{DRIVER}/TaskEvents"));
        assert_eq!(events, Whose::Ours(Known::Driver(Driver::TaskEvents)));
        let devices = whose(Role::Device, &format!("{DEVICE}/Fingerprint"));
        assert_eq!(devices, Whose::Ours(Known::DeviceFingerprint));
    }

    #[test]
    fn a_plugin_of_one_kind_is_none_of_the_other() {
        assert_eq!(whose(Role::Device, &format!("{DRIVER}/StartTask")), Whose::Nobodys);
        assert_eq!(whose(Role::Driver, &format!("{DEVICE}/Reserve")), Whose::Nobodys);
        for path in ["", "/", "/x", "/switchyard.nomad.v1.Sessions/Open", "/plugin.GRPCBroker/Other"] {
            assert_eq!(whose(Role::Driver, path), Whose::Nobodys, "{path}");
        }
    }
}
