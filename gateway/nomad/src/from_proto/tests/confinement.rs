//! Privileges, capabilities, profiles and namespaces of the host.

use super::*;

#[track_caller]
fn security(options: &[&str]) -> Security {
    planned([("security_opt", texts(options))]).task.security
}

#[test]
fn a_task_is_confined_as_docker_confines_it_without_raw_sockets() {
    let made = planned([]).task.security;
    assert_eq!(made.capabilities.drop, strings(&["ALL"]));
    assert_eq!(made.capabilities.add.len(), 13);
    assert!(!made.capabilities.add.contains(&"NET_RAW".to_owned()));
    assert_eq!((made.seccomp, made.apparmor, made.selinux), (SeccompProfile::RuntimeDefault, None, None));
    assert_eq!((made.privileged, made.no_new_privileges, made.readonly_rootfs), (false, false, false));
    assert!(
        made.masked_paths.contains(&"/proc/kcore".into())
            && made.readonly_paths.contains(&"/proc/sys".into())
    );
}

#[test]
fn privileges_need_the_operators_leave() {
    let text = "Docker privileged mode is disabled on this Nomad agent: allow_privileged of the plugin's configuration is false";
    invalid("privileged", true, text);
    let plan = planned_for(generous(), [("privileged", true.into()), ("readonly_rootfs", true.into())]);
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
fn capabilities_are_those_that_the_operator_allows() {
    let text = "driver does not allow the following capabilities: net_raw, sys_time";
    invalid("cap_add", texts(&["SYS_TIME", "cap_net_raw", "CHOWN"]), text);
    let made = planned_for(generous(), [("cap_add", texts(&["sys_time"])), ("cap_drop", texts(&["all"]))]);
    assert_eq!(made.task.security.capabilities.add, strings(&["SYS_TIME"]));
    invalid("cap_drop", texts(&["x y"]), "cap_drop[0]: \"x y\" is not the name of a capability");
}

#[test]
fn security_options_are_dockers() {
    assert!(security(&["no-new-privileges"]).no_new_privileges);
    assert!(security(&["no-new-privileges=true"]).no_new_privileges);
    assert!(security(&["no-new-privileges:true"]).no_new_privileges);
    assert!(!security(&["no-new-privileges", "no-new-privileges=false"]).no_new_privileges);
    assert_eq!(security(&["seccomp=unconfined"]).seccomp, SeccompProfile::Unconfined);
    assert_eq!(security(&["seccomp:unconfined"]).seccomp, SeccompProfile::Unconfined);
    assert_eq!(security(&["seccomp=builtin"]).seccomp, SeccompProfile::RuntimeDefault);
    assert_eq!(security(&["seccomp=/etc/p.json"]).seccomp, SeccompProfile::Localhost("/etc/p.json".into()));
    assert_eq!(security(&["apparmor=unconfined"]).apparmor, Some(AppArmorProfile::Unconfined));
    assert_eq!(security(&["apparmor=docker-default"]).apparmor, Some(AppArmorProfile::RuntimeDefault));
    assert_eq!(security(&["apparmor=mine"]).apparmor, Some(AppArmorProfile::Localhost("mine".to_owned())));
    let made = planned([(
        "security_opt",
        texts(&["label=type:my_t", "label=level:s0:c1,c2", "systempaths=unconfined"]),
    )]);
    let label =
        SelinuxLabel { type_: "my_t".to_owned(), level: "s0:c1,c2".to_owned(), ..SelinuxLabel::default() };
    assert_eq!(
        (made.task.security.selinux.as_ref(), made.sandbox.selinux.as_ref()),
        (Some(&label), Some(&label))
    );
    assert_eq!((made.task.security.masked_paths.len(), made.task.security.readonly_paths.len()), (0, 0));
    assert_eq!(security(&["label=disable"]).selinux.unwrap().type_, "spc_t");
}

#[test]
fn security_options_that_cannot_be_are_refused_by_their_number() {
    for (option, why) in [
        ("no-new-privileges=maybe", "\"no-new-privileges=maybe\" is no security option that can be set here"),
        ("apparmor=", "\"apparmor=\" is no security option that can be set here"),
        ("writable-cgroups=true", "\"writable-cgroups=true\" is no security option that can be set here"),
        ("seccomp=profile.json", "\"profile.json\" is not an absolute path"),
        ("label=color:red", "\"color:red\" is no part of a label"),
        ("label=type:", "\"\" cannot be an SELinux type"),
        ("label=level:s0 c1", "\"s0 c1\" cannot be an SELinux level"),
        ("label=level:s0\",index=on,x=\"", "\"s0\\\",index=on,x=\\\"\" cannot be an SELinux level"),
        ("label=user:a,b", "\"a,b\" cannot be an SELinux user"),
    ] {
        invalid("security_opt", texts(&["no-new-privileges", option]), &format!("security_opt[1]: {why}"));
    }
    let windows = "security_opt[0]: credentialspec is for Windows";
    impossible("security_opt", texts(&["credentialspec=file://x"]), windows);
}

#[test]
fn namespaces_of_the_host_need_the_operators_leave() {
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
            PluginConfig { allowed_modes: modes, ..PluginConfig::default() },
            [(&*key, "host".into())],
        );
        let text = format!("{key}: \"container:x\" cannot be had, only \"host\" or the task's own");
        impossible(&key, "container:x", &text);
    }
    let plan = planned_for(generous(), [("pid_mode", "host".into()), ("ipc_mode", "host".into())]);
    assert_eq!(
        (plan.sandbox.pid, plan.task.pid, plan.sandbox.ipc),
        (SandboxPid::Host, PidMode::Host, IpcMode::Host)
    );
    let own = planned([("pid_mode", "private".into()), ("ipc_mode", "shareable".into())]);
    assert_eq!((own.sandbox.pid, own.sandbox.ipc), (SandboxPid::PerTask, IpcMode::Shared));
}

#[test]
fn a_cgroup_namespace_is_private_or_the_hosts() {
    assert_eq!(planned([("cgroupns", "host".into())]).task.cgroup_namespace, Some(CgroupNamespace::Host));
    assert_eq!(
        planned([("cgroupns", "private".into())]).task.cgroup_namespace,
        Some(CgroupNamespace::Private)
    );
    invalid("cgroupns", "x", "cgroupns: \"x\" is neither \"private\" nor \"host\"");
}

#[test]
fn an_init_needs_a_process_namespace_of_its_own() {
    let both = task([("init", true.into()), ("pid_mode", "host".into())]);
    let text = "init: it is the first of a process namespace; pid_mode is \"host\"";
    refused_task(&both, generous(), ErrorKind::InvalidArgument, text);
}

#[test]
fn runtimes_are_those_that_the_operator_names_if_any() {
    let config = || PluginConfig { allow_runtimes: strings(&["runc"]), ..PluginConfig::default() };
    assert_eq!(planned_for(config(), [("runtime", "runc".into())]).sandbox.handler, "runc");
    let text = "runtime: requested runtime \"kata\" is not allowed: have allow_runtimes of the plugin's configuration name it";
    refused_task(&task([("runtime", "kata".into())]), config(), ErrorKind::InvalidArgument, text);
}
