//! Effects of changes of keys: the one list, which `config.toml` repeats behind each key.

use switchyard_operator_api::Effect::{
    self, EmptyNode, Reload, Restart, RestartContainerd, RestartLogkeeper,
};

/// Keys and sections with their effects; a longer path takes precedence over a section that it is in.
const EFFECTS: &[(&str, Effect)] = &[
    ("version", Restart),
    ("paths", EmptyNode),
    ("log", Restart),
    ("log.level", Reload),
    ("admin", Restart),
    ("admin.metrics_tls_certificate", Reload),
    ("admin.metrics_tls_key", Reload),
    ("admin.metrics_client_ca", Reload),
    ("admin.metrics_bearer_token_file", Reload),
    ("cri", Restart),
    ("cri.runtime_name", Reload),
    ("cri.unprivileged_ports", Reload),
    ("cri.unprivileged_icmp", Reload),
    ("cri.unset_seccomp", Reload),
    ("cri.exec_drain_seconds", Reload),
    ("cri.streaming.tls_certificate", Reload),
    ("cri.streaming.tls_key", Reload),
    ("nomad", Restart),
    ("swarm", Restart),
    ("swarm.allow_devices", Reload),
    ("swarm.image_retention", Reload),
    ("containerd", Restart),
    ("containerd.mode", EmptyNode),
    ("containerd.address", EmptyNode),
    ("containerd.binary", RestartContainerd),
    ("containerd.namespace", EmptyNode),
    ("containerd.proxy_plugins", RestartContainerd),
    ("containerd.max_concurrent_downloads", Reload),
    ("containerd.shim_timeout_seconds", Reload),
    ("network", Restart),
    ("network.port_conflict", Reload),
    ("network.dns", Reload),
    ("network.bridge", EmptyNode),
    ("network.bridge.driver", Restart),
    ("network.bridge.pin", Restart),
    ("network.pods.name", EmptyNode),
    ("devices", Reload),
    ("ledger", Reload),
    ("images", Reload),
    ("images.max_account_file_bytes", Restart),
    ("exec", Reload),
    ("registry", Reload),
    ("cgroup", Restart),
    ("cgroup.driver", EmptyNode),
    ("recovery", Restart),
    ("logkeeper", EmptyNode),
    ("logkeeper.sandbox", RestartLogkeeper),
    ("managed", Restart),
    ("managed.oom_score", RestartContainerd),
    ("advisories", Reload),
    ("audit", Restart),
    ("audit.exec_sync", Reload),
];

/// The keys of files that a listener presents or compares with: another file is read by a reload.
const FILES_OF_LISTENERS: &[&str] = &[
    "admin.metrics_tls_certificate",
    "admin.metrics_tls_key",
    "admin.metrics_client_ca",
    "admin.metrics_bearer_token_file",
    "cri.streaming.tls_certificate",
    "cri.streaming.tls_key",
];

/// Returns the effect of a change of the key at this path, which may be a whole runtime. `is_added` and
/// `is_removed` are true if only the new or only the old configuration sets it.
pub(super) fn effect_of(path: &[String], is_added: bool, is_removed: bool) -> Effect {
    // A new runtime affects nothing that exists; another one may have containers.
    if is_runtime(path) && is_added {
        return Reload;
    }
    match path.join(".").as_str() {
        // A listener starts or ceases to serve HTTPS, or to demand something of its clients, with a restart.
        name if FILES_OF_LISTENERS.contains(&name) && (is_added || is_removed) => Restart,
        name => by_section(name),
    }
}

/// Returns whether a path is that of a whole runtime.
pub(super) fn is_runtime(path: &[String]) -> bool {
    matches!(path, [section, runtimes, _] if section == "containerd" && runtimes == "runtimes")
}

fn by_section(dotted: &str) -> Effect {
    let within = |section: &str| {
        dotted
            .strip_prefix(section)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    EFFECTS
        .iter()
        .filter(|(section, _)| within(section))
        .max_by_key(|(section, _)| section.len())
        // A key that is not listed: the safest that always works.
        .map_or(Restart, |(_, effect)| *effect)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::documented::keys as documented;

    fn path(dotted: &str) -> Vec<String> {
        dotted.split('.').map(str::to_owned).collect()
    }

    #[test]
    fn every_documented_key_names_its_effect() {
        let keys = documented();
        assert!(keys.len() >= 100, "{} keys were found", keys.len());
        for (key, words) in keys.iter().filter(|(key, _)| key != "version") {
            assert_eq!(words, effect_of(&path(key), false, false).words(), "{key}");
        }
    }

    #[test]
    fn every_section_of_the_list_is_documented() {
        let keys = documented();
        for (section, _) in EFFECTS {
            let within = |key: &str| key == *section || key.starts_with(&format!("{section}."));
            assert!(
                keys.iter().any(|(key, _)| within(key)),
                "{section} is in no key"
            );
        }
    }

    #[test]
    fn only_an_added_runtime_is_reloaded_and_https_is_not_switched() {
        let runtime = path("containerd.runtimes.kata");
        assert_eq!(effect_of(&runtime, true, false), Reload);
        assert_eq!(effect_of(&runtime, false, true), Restart);
        assert_eq!(effect_of(&runtime, false, false), Restart);
        for file in FILES_OF_LISTENERS.iter().copied().map(path) {
            assert_eq!(effect_of(&file, false, false), Reload);
            assert_eq!(effect_of(&file, true, false), Restart);
            assert_eq!(effect_of(&file, false, true), Restart);
        }
        assert_eq!(effect_of(&path("images"), false, false), Reload);
        assert_eq!(effect_of(&path("imagesque"), false, false), Restart);
    }
}
