//! Checks of what the kernel and the node offer to the daemon: as the daemon has tried it, or else as this process does.

use switchyard_linux::host_features::HostFeature;
use switchyard_operator_api::FeatureView;

use super::codes::node::{
    APPARMOR_UNUSABLE, IN_USER_NAMESPACE, NO_HOST_FEATURE, NO_NEEDED_FEATURE,
};
use super::codes::runtime::{NATIVE_LACKING, NOT_PINNED};
use super::facts::Facts;
use super::finding::Finding;
use super::native::{NATIVE_BRIDGE, NATIVE_PINS};

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let reported = facts.status.iter().flat_map(|status| &status.features);
    let mut features: Vec<FeatureView> = reported.cloned().collect();
    // No daemon answers, or one that does not know features yet.
    if features.is_empty() {
        let found = facts.view.host_features(&facts.config.paths.run);
        features.extend(found.into_iter().map(view));
    }
    features
        .into_iter()
        .filter_map(|feature| finding(facts, &feature.name, &feature.fault?))
        .collect()
}

fn view(HostFeature { name, fault }: HostFeature) -> FeatureView {
    FeatureView {
        name: name.to_owned(),
        fault,
    }
}

fn finding(facts: &Facts, name: &str, fault: &str) -> Option<Finding> {
    match name {
        "openat2" => Some(Finding::new(&NO_NEEDED_FEATURE, fault)),
        "initial_user_namespace" => Some(Finding::new(&IN_USER_NAMESPACE, fault)),
        // A kernel without AppArmor is a finding of its own.
        "apparmor" => facts
            .has_apparmor()
            .then(|| Finding::new(&APPARMOR_UNUSABLE, fault)),
        NATIVE_BRIDGE => Some(Finding::new(&NATIVE_LACKING, fault)),
        NATIVE_PINS => Some(Finding::new(&NOT_PINNED, fault)),
        // The daemon does the same in another way.
        "executable_memory" | "executable_run" => None,
        name => Some(Finding::new(&NO_HOST_FEATURE, format!("{name}: {fault}"))),
    }
}
