//! Keys of security: the one list. A start refuses what it does not know of them, and ignores it elsewhere.
//!
//! Ignored, an unknown value leaves the default in force, or that of a lower layer, and so does a misspelt key. Here
//! that would open what somebody has closed, or run containers with less isolation. It would also make a node forget
//! its containers: keys that say where they are found are on the list too.

/// Keys and whole sections.
const REFUSED: &[&str] = &[
    "version",
    // Where this node's containers, their state and their cgroups are: elsewhere none are found.
    "paths.state",
    "paths.run",
    "containerd.mode",
    "containerd.address",
    "containerd.namespace",
    "network.bridge",
    "network.pods",
    "cgroup.driver",
    "cgroup.default_parent",
    "logkeeper.mode",
    "logkeeper.socket",
    "logkeeper.state_dir",
    // Who may use a listener, what it shows, and whether there is one.
    "admin",
    "cri.enabled",
    "cri.socket",
    "cri.socket_group",
    "cri.streaming",
    "nomad.enabled",
    "nomad.socket",
    "nomad.socket_group",
    "devices.host",
    // Whom the node obeys.
    "swarm.enabled",
    "swarm.join_token_file",
    "swarm.managers",
    // Which work it takes.
    "swarm.availability",
    "ledger.overcommit",
    // The isolation of containers and of the logkeeper.
    "cri.unprivileged_ports",
    "cri.unprivileged_icmp",
    "cri.unset_seccomp",
    "containerd.default_runtime",
    "containerd.runtimes",
    "containerd.selinux",
    "network.conf_dir",
    "cri.network",
    "network.isolation",
    "network.isolation_allow",
    "network.direct_routing",
    // The programs that are run as root.
    "containerd.binary",
    "network.bin_dirs",
    "logkeeper.sandbox",
    // The processes that tell containerd what to mount.
    "containerd.proxy_plugins",
    // What a container may get of the node.
    "swarm.allow_devices",
    "devices.groups",
    "devices.cdi_spec_dirs",
    "devices.named",
    "network.port_conflict",
    // Which registries are asked, with which credentials and how protected.
    "registry.config_dirs",
    "registry.allow_http_redirects",
    "registry.hosts",
    // What is recorded of all that.
    "audit",
];

/// Returns whether a start refuses an unknown value of the key at this path.
pub(super) fn is_value_refused(path: &[String]) -> bool {
    let key = path.join(".");
    REFUSED.iter().any(|refused| is_within(&key, refused))
}

/// Returns whether a start refuses an unknown key of this section. `meant` is the known key with the most similar name.
pub(super) fn is_unknown_key_refused(section: &[String], meant: Option<&str>) -> bool {
    let Some(meant) = meant else {
        return is_value_refused(section);
    };
    let meant = [section, &[meant.to_owned()]].concat().join(".");
    // An unknown section may have been meant as one with such keys.
    let is_concerned = |refused: &&str| is_within(&meant, refused) || is_within(refused, &meant);
    REFUSED.iter().any(is_concerned)
}

/// Returns whether a key is this one or in this section.
fn is_within(key: &str, section: &str) -> bool {
    key.strip_prefix(section)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::documented::keys as documented;
    use crate::tree::path_of;

    /// All other keys and sections. A new key belongs to this list or to the other one.
    const IGNORED: &[&str] = &[
        "log",
        "cri.runtime_name",
        "cri.exec_drain_seconds",
        "cri.max_connections",
        "cri.max_streams",
        "nomad.max_connections",
        "swarm.labels",
        "swarm.port_range",
        "swarm.image_retention",
        "containerd.snapshotter",
        "containerd.infra",
        "containerd.max_concurrent_downloads",
        "containerd.answer_timeout_seconds",
        "containerd.shim_timeout_seconds",
        "network.plugin_timeout_seconds",
        "network.gc",
        "network.dns",
        "devices.lease_minutes",
        "devices.restart_grace_seconds",
        "devices.kubelet",
        "images",
        "exec",
        "registry.idle_timeout_seconds",
        "registry.parallel_ranges",
        "recovery",
        "managed",
        "advisories",
    ];

    #[test]
    fn each_documented_key_is_on_one_of_the_lists_and_each_entry_is_documented() {
        let keys: Vec<String> = documented().into_iter().map(|(key, _)| key).collect();
        let entries = || REFUSED.iter().chain(IGNORED);
        for key in &keys {
            let covering: Vec<_> = entries().filter(|entry| is_within(key, entry)).collect();
            assert_eq!(covering.len(), 1, "{key} is in {covering:?}");
        }
        for entry in entries() {
            assert!(
                keys.iter().any(|key| is_within(key, entry)),
                "{entry} has no key"
            );
        }
    }

    #[track_caller]
    fn check(section: &str, meant: Option<&str>, is_refused: bool) {
        let section = match section {
            "" => Vec::new(),
            section => path_of(section),
        };
        assert_eq!(is_unknown_key_refused(&section, meant), is_refused);
    }

    #[test]
    fn unknown_key_is_refused_within_a_section_of_security_or_if_it_resembles_such_a_key() {
        check("admin", None, true);
        check("admin", Some("max_connections"), true);
        check("containerd.runtimes.kata", None, true);
        check("devices.groups.0", None, true);
        check("cri", Some("socket_group"), true);
        check("cri", Some("max_streams"), false);
        check("cri", None, false);
        check("log", Some("level"), false);
        check("", Some("containerd"), true);
        check("", Some("audit"), true);
        check("", Some("ledger"), true);
        check("", Some("images"), false);
        check("", None, false);
    }

    #[test]
    fn value_is_refused_of_a_key_of_security_alone() {
        for (key, is_refused) in [
            ("cri.unset_seccomp", true),
            ("containerd.runtimes.kata.sandbox", true),
            ("containerd.infra", false),
            ("log.format", false),
            ("auditor.to", false),
        ] {
            assert_eq!(is_value_refused(&path_of(key)), is_refused, "{key}");
        }
    }
}
