//! Tests of privileges, capabilities, profiles and host namespaces.

use super::*;

#[track_caller]
fn security(options: &[&str]) -> Security {
    planned([("security_opt", texts(options))]).task.security
}

#[test]
fn default_confinement_is_dockers_without_net_raw() {
    let made = planned([]).task.security;
    assert_eq!(made.capabilities.drop, strings(&["ALL"]));
    assert_eq!(made.capabilities.add.len(), 13);
    assert!(!made.capabilities.add.contains(&"NET_RAW".to_owned()));
    assert_eq!(
        (made.seccomp, made.apparmor, made.selinux),
        (SeccompProfile::RuntimeDefault, None, None)
    );
    assert_eq!(
        (
            made.privileged,
            made.no_new_privileges,
            made.readonly_rootfs
        ),
        (false, false, false)
    );
    assert!(
        made.masked_paths.contains(&"/proc/kcore".into())
            && made.readonly_paths.contains(&"/proc/sys".into())
    );
}

#[test]
fn privileged_needs_operator_permission() {
    let text = "privileged: Docker privileged mode is disabled on this Nomad agent: allow_privileged of the plugin's configuration is false";
    invalid("privileged", true, text);
    let plan = planned_for(
        generous(),
        [
            ("privileged", true.into()),
            ("readonly_rootfs", true.into()),
        ],
    );
    assert!(plan.sandbox.privileged);
    let expected = Security {
        privileged: true,
        readonly_rootfs: true,
        seccomp: SeccompProfile::Unconfined,
        apparmor: Some(AppArmorProfile::Unconfined),
        ..Security::default()
    };
    assert_eq!(plan.task.security, expected);
}

#[test]
fn capabilities_are_limited_by_the_operator() {
    let text = "cap_add[0]: driver does not allow the following capabilities: net_raw, sys_time";
    invalid(
        "cap_add",
        texts(&["SYS_TIME", "cap_net_raw", "CHOWN"]),
        text,
    );
    let made = planned_for(
        generous(),
        [
            ("cap_add", texts(&["sys_time"])),
            ("cap_drop", texts(&["all"])),
        ],
    );
    assert_eq!(made.task.security.capabilities.add, strings(&["SYS_TIME"]));
    invalid(
        "cap_drop",
        texts(&["x y"]),
        "cap_drop[0]: \"x y\" is not the name of a capability",
    );
}

#[test]
fn security_options_parse_as_in_docker() {
    assert!(security(&["no-new-privileges"]).no_new_privileges);
    assert!(security(&["no-new-privileges=true"]).no_new_privileges);
    assert!(security(&["no-new-privileges:true"]).no_new_privileges);
    assert!(!security(&["no-new-privileges", "no-new-privileges=false"]).no_new_privileges);
    assert_eq!(
        security(&["seccomp=unconfined"]).seccomp,
        SeccompProfile::Unconfined
    );
    assert_eq!(
        security(&["seccomp:unconfined"]).seccomp,
        SeccompProfile::Unconfined
    );
    assert_eq!(
        security(&["seccomp=builtin"]).seccomp,
        SeccompProfile::RuntimeDefault
    );
    assert_eq!(
        security(&["seccomp=/etc/p.json"]).seccomp,
        SeccompProfile::Localhost("/etc/p.json".into())
    );
    assert_eq!(
        security(&["apparmor=unconfined"]).apparmor,
        Some(AppArmorProfile::Unconfined)
    );
    assert_eq!(
        security(&["apparmor=docker-default"]).apparmor,
        Some(AppArmorProfile::RuntimeDefault)
    );
    assert_eq!(
        security(&["apparmor=mine"]).apparmor,
        Some(AppArmorProfile::Localhost("mine".to_owned()))
    );
    let options = texts(&[
        "label=type:my_t",
        "label=level:s0:c1,c2",
        "systempaths=unconfined",
    ]);
    let made = planned_for(generous(), [("security_opt", options)]);
    let label = SelinuxLabel {
        type_: "my_t".to_owned(),
        level: "s0:c1,c2".to_owned(),
        ..SelinuxLabel::default()
    };
    assert_eq!(
        (
            made.task.security.selinux.as_ref(),
            made.sandbox.selinux.as_ref()
        ),
        (Some(&label), Some(&label))
    );
    assert_eq!(
        (
            made.task.security.masked_paths.len(),
            made.task.security.readonly_paths.len()
        ),
        (0, 0)
    );
    assert_eq!(security(&["label=disable"]).selinux.unwrap().type_, "spc_t");
}

#[test]
fn invalid_security_options_are_rejected_by_index() {
    for (option, why) in [
        (
            "no-new-privileges=maybe",
            "\"no-new-privileges=maybe\" is no security option that can be set here",
        ),
        (
            "apparmor=",
            "\"apparmor=\" is no security option that can be set here",
        ),
        (
            "writable-cgroups=true",
            "\"writable-cgroups=true\" is no security option that can be set here",
        ),
        (
            "seccomp=profile.json",
            "\"profile.json\" is not an absolute path",
        ),
        ("label=color:red", "\"color:red\" is no part of a label"),
        ("label=type:", "\"\" cannot be an SELinux type"),
        ("label=level:s0 c1", "\"s0 c1\" cannot be an SELinux level"),
        (
            "label=level:s0\",index=on,x=\"",
            "\"s0\\\",index=on,x=\\\"\" cannot be an SELinux level",
        ),
        ("label=user:a,b", "\"a,b\" cannot be an SELinux user"),
    ] {
        invalid(
            "security_opt",
            texts(&["no-new-privileges", option]),
            &format!("security_opt[1]: {why}"),
        );
    }
    let windows = "security_opt[0]: credentialspec is for Windows";
    impossible("security_opt", texts(&["credentialspec=file://x"]), windows);
}

#[test]
fn host_namespaces_need_operator_permission() {
    for kind in ["pid", "ipc", "uts", "userns"] {
        let key = format!("{kind}_mode");
        let text = format!(
            "{key}: \"host\" is not allowed on this Nomad agent: have allowed_modes.{kind} of the plugin's configuration name it"
        );
        invalid(&key, "host", &text);
        let mut modes = AllowedModes::default();
        let list = match kind {
            "pid" => &mut modes.pid,
            "ipc" => &mut modes.ipc,
            "uts" => &mut modes.uts,
            _ => &mut modes.userns,
        };
        list.push("host".to_owned());
        planned_for(
            PluginConfig {
                allowed_modes: modes,
                ..PluginConfig::default()
            },
            [(&*key, "host".into())],
        );
        let text =
            format!("{key}: \"container:x\" is not supported, only \"host\" or the task's own");
        impossible(&key, "container:x", &text);
    }
    let plan = planned_for(
        generous(),
        [("pid_mode", "host".into()), ("ipc_mode", "host".into())],
    );
    assert_eq!(
        (plan.sandbox.pid, plan.task.pid, plan.sandbox.ipc),
        (SandboxPid::Host, PidMode::Host, IpcMode::Host)
    );
    let own = planned([
        ("pid_mode", "private".into()),
        ("ipc_mode", "shareable".into()),
    ]);
    assert_eq!(
        (own.sandbox.pid, own.sandbox.ipc),
        (SandboxPid::PerTask, IpcMode::Shared)
    );
}

#[test]
fn cgroup_namespace_is_private_or_host() {
    assert_eq!(
        planned([("cgroupns", "host".into())]).task.cgroup_namespace,
        Some(CgroupNamespace::Host)
    );
    assert_eq!(
        planned([("cgroupns", "private".into())])
            .task
            .cgroup_namespace,
        Some(CgroupNamespace::Private)
    );
    invalid(
        "cgroupns",
        "x",
        "cgroupns: \"x\" is neither \"private\" nor \"host\"",
    );
}

#[test]
fn init_needs_a_private_pid_namespace() {
    let both = task([("init", true.into()), ("pid_mode", "host".into())]);
    let text = "init: it is the first of a process namespace; pid_mode is \"host\"";
    refused_task(&both, generous(), ErrorKind::InvalidArgument, text);
}

#[test]
fn runtimes_are_limited_by_the_operator() {
    let config = || PluginConfig {
        allow_runtimes: strings(&["runc"]),
        ..PluginConfig::default()
    };
    assert_eq!(
        planned_for(config(), [("runtime", "runc".into())])
            .sandbox
            .handler,
        "runc"
    );
    let text = "runtime: requested runtime \"kata\" is not allowed: have allow_runtimes of the plugin's configuration name it";
    refused_task(
        &task([("runtime", "kata".into())]),
        config(),
        ErrorKind::InvalidArgument,
        text,
    );
}

#[test]
fn unmasked_paths_need_privileged_permission() {
    for option in ["systempaths=unconfined", "systempaths:unconfined"] {
        let text = "security_opt[0]: \"systempaths=unconfined\" is as good as privileged, and allow_privileged of the plugin's \
                    configuration is false";
        invalid("security_opt", texts(&[option]), text);
        let made = planned_for(generous(), [("security_opt", texts(&[option]))])
            .task
            .security;
        assert_eq!(
            (
                made.masked_paths.len(),
                made.readonly_paths.len(),
                made.privileged
            ),
            (0, 0, false)
        );
    }
}

#[test]
fn security_options_are_limited_to_allowed_and_restrictive_ones() {
    let config = |patterns: &[&str]| PluginConfig {
        allow_security_opt: strings(patterns),
        ..PluginConfig::default()
    };
    let opening = [
        "seccomp=unconfined",
        "seccomp=/p.json",
        "apparmor=unconfined",
        "apparmor=mine",
        "label=disable",
        "label:type:t",
    ];
    for option in opening {
        let (key, value) = option.split_once(['=', ':']).unwrap();
        let text = format!(
            "security_opt[0]: \"{key}={value}\" is not allowed on this Nomad agent: have allow_security_opt of the plugin's \
             configuration name it"
        );
        let asked = [("security_opt", texts(&[option]))];
        refused_task(
            &task(asked.clone()),
            config(&[]),
            ErrorKind::InvalidArgument,
            &text,
        );
        planned_for(config(&["no-such", &format!("{key}=*")]), asked);
    }
    let confining = [
        "no-new-privileges",
        "no-new-privileges=false",
        "seccomp=builtin",
        "apparmor=docker-default",
    ];
    planned_for(config(&[]), [("security_opt", texts(&confining))]);
    // Allowing it in the list does not give privileges.
    let text = "security_opt[0]: \"systempaths=unconfined\" is as good as privileged, and allow_privileged of the plugin's \
                configuration is false";
    let asked = task([("security_opt", texts(&["systempaths=unconfined"]))]);
    refused_task(
        &asked,
        config(&["systempaths=unconfined"]),
        ErrorKind::InvalidArgument,
        text,
    );
}

#[test]
fn host_network_and_cgroupns_are_allowed_by_default() {
    for (key, kind) in [("network_mode", "network"), ("cgroupns", "cgroupns")] {
        planned([(key, "host".into())]);
        let modes = AllowedModes {
            network: Vec::new(),
            cgroupns: Vec::new(),
            ..AllowedModes::default()
        };
        let config = || PluginConfig {
            allowed_modes: modes.clone(),
            ..PluginConfig::default()
        };
        let text = format!(
            "{key}: \"host\" is not allowed on this Nomad agent: have allowed_modes.{kind} of the plugin's configuration name it"
        );
        refused_task(
            &task([(key, "host".into())]),
            config(),
            ErrorKind::InvalidArgument,
            &text,
        );
        planned_for(
            PluginConfig {
                allow_privileged: true,
                ..config()
            },
            [(key, "host".into())],
        );
        planned_for(
            config(),
            [
                ("network_mode", "none".into()),
                ("cgroupns", "private".into()),
            ],
        );
    }
}

#[test]
fn host_devices_are_allowed_by_default() {
    let device = |path: &str| list([map([("host_path", path.into())])]);
    for path in ["/dev/fuse", "acme.com/tpu=0"] {
        planned([("devices", device(path))]);
        let config = PluginConfig {
            allow_devices: false,
            ..PluginConfig::default()
        };
        let text = "devices[0]: jobs may name no devices of the host on this Nomad agent: allow_devices of the plugin's \
                    configuration is false";
        refused_task(
            &task([("devices", device(path))]),
            config,
            ErrorKind::InvalidArgument,
            text,
        );
    }
    // Devices from the agent need no permission.
    let given = nomad::Device {
        task_path: "/dev/x".to_owned(),
        host_path: "/dev/null".to_owned(),
        ..Default::default()
    };
    let asked = nomad::TaskConfig {
        devices: vec![given],
        ..task([])
    };
    let config = PluginConfig {
        allow_devices: false,
        ..PluginConfig::default()
    };
    assert_eq!(
        plan(&asked, &session(config)).unwrap().task.devices.len(),
        1
    );
}
