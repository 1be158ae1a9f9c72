//! Checks of control groups and of the security modules that confine containers.

use super::codes::node::{CGROUP_V1, NO_APPARMOR, NO_CONTROLLER};
use super::facts::Facts;
use super::finding::Finding;
use super::selinux;

/// The controllers that limits of containers need; with cgroup v2 those of io and cpuset are used too.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(hierarchy(facts));
    found.extend(controllers(facts));
    found.extend(confinement(facts));
    found
}

fn hierarchy(facts: &Facts) -> Option<Finding> {
    let view = &facts.view;
    if facts.is_unified() || !view.exists("/sys/fs/cgroup") {
        return None;
    }
    let found = if view.exists("/sys/fs/cgroup/unified") {
        "/sys/fs/cgroup has hierarchies of cgroup v1, and one of v2 without controllers (hybrid)"
    } else {
        "/sys/fs/cgroup has hierarchies of cgroup v1"
    };
    Some(Finding::new(&CGROUP_V1, found))
}

fn controllers(facts: &Facts) -> Option<Finding> {
    let view = &facts.view;
    let (path, enabled): (_, Vec<String>) = if facts.is_unified() {
        let path = "/sys/fs/cgroup/cgroup.controllers";
        (
            path,
            view.text(path)?
                .split_whitespace()
                .map(str::to_owned)
                .collect(),
        )
    } else {
        let path = "/proc/cgroups";
        let text = view.text(path)?;
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        // Name, hierarchy, number of cgroups, whether it is enabled.
        let fields = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
        let enabled = fields.filter(|fields| fields.get(3) == Some(&"1"));
        (
            path,
            enabled
                .filter_map(|fields| fields.first().map(|name| (*name).to_owned()))
                .collect(),
        )
    };
    let missing: Vec<&str> = CONTROLLERS
        .into_iter()
        .filter(|name| !enabled.iter().any(|known| known == name))
        .collect();
    (!missing.is_empty()).then(|| {
        Finding::new(
            &NO_CONTROLLER,
            format!("{path} lacks {}", missing.join(", ")),
        )
    })
}

fn confinement(facts: &Facts) -> Option<Finding> {
    let view = &facts.view;
    if selinux::is_on(&**view) {
        return selinux::check(facts);
    }
    (!facts.has_apparmor()).then(|| {
        Finding::new(
            &NO_APPARMOR,
            "/sys/module/apparmor/parameters/enabled is not Y",
        )
    })
}
